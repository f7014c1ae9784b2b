"""Data processors of language models that predict the next token. Tokenizes nothing but bytes.

Every processor yields features ``input_ids`` [B, S] int32 and ``input_mask`` [B, S] int32 (1 where
there is padding), and, but for prompts, labels [B, S] int32, the next tokens.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from modelzoo.common.data import hdf5_files, record_files, text_files, tf_records
from modelzoo.common.data.batches import EpochOrder, numbered_batches
from modelzoo.common.data.prepared import check_prepared, check_tokens
from modelzoo.common.data.prompts import read_prompts
from modelzoo.common.tokenizers.tokenizers import load_tokenizer

RECORD_FEATURES = ("input_ids", "input_mask", "labels")


class GptProcessor:
    """Base of the processors."""

    def __init__(self, section):
        self.section = section

    def blank(self):
        ids = tf.zeros([self.section.batch_size, self.section.max_sequence_length], tf.int32)
        return {"input_ids": ids, "input_mask": ids}, ids


class GptTfRecordsProcessor(GptProcessor, tf_records.RecordProcessor):
    """Reads TFRecords with int64 [S] features input_ids, input_mask (1 = real token) and labels."""

    def layout(self, predicting=False):
        return record_files.integers(RECORD_FEATURES, self.section.max_sequence_length)

    def create_dataset(self, training, skip, predicting=False):

        def example(parsed):
            features = {"input_ids": parsed["input_ids"], "input_mask": 1 - parsed["input_mask"]}
            return features, parsed["labels"]

        dataset = tf_records.read_batches(self.section, self.layout(), skip, not training)
        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(2)


class GptTextDataProcessor(GptProcessor):
    """Reads text files as bytes: tokens 0 to 255, and 256 at the end of each file."""

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches of one split of the files, without the first `skip`.

        See ``functions.py``.
        """
        section = self.section
        length = section.max_sequence_length
        shape = [section.batch_size if training else None, length + 1]
        windows = text_files.open_windows(section, training, length, not training)

        def example(number):
            tokens = tf.ensure_shape(tf.numpy_function(windows.batch, [number], tf.int32), shape)
            ids, labels = tokens[:, :-1], tokens[:, 1:]
            return {"input_ids": ids, "input_mask": tf.zeros_like(ids)}, labels

        count = windows.batches_per_epoch
        return numbered_batches(example, skip, count, section.repeat, training)


class GptHDF5DataProcessor(GptProcessor):
    """Reads HDF5 files with the records of ``modelzoo/common/data/hdf5_files.py``.

    Unlike TFRecords they are shuffled as a whole, and a stream starts at any step at no cost.
    """

    def create_dataset(self, training, skip, predicting=False):
        section = self.section
        length, size = section.max_sequence_length, section.batch_size
        folders = hdf5_files.as_folders(section.data_dir)
        check_prepared(folders, {"vocab_size": section.vocab_size}, length)
        records = hdf5_files.Hdf5Records(section.data_dir, length)
        if len(records):
            check_tokens(folders[0], records.rows([0])[0, 0].tolist(), section.vocab_size)
        seed = (section.shuffle_seed or 0) if section.shuffle else None
        order = EpochOrder(len(records), size, seed, not training)
        if not order.batches_per_epoch:
            raise DataError(
                f"data_dir: must contain at least {size} records, one batch. Received: "
                f"{len(records)}. Add records, or lower batch_size."
            )

        def rows(number):
            return records.rows(order.examples_of(number))

        def example(number):
            shape = [size if training else None, len(RECORD_FEATURES), length]
            data = tf.ensure_shape(tf.numpy_function(rows, [number], tf.int32), shape)
            ids, mask, labels = tf.unstack(data, axis=1)
            with tf.control_dependencies([tf_records.check_mask(mask)]):
                return {"input_ids": ids, "input_mask": 1 - mask}, labels

        count = order.batches_per_epoch
        return numbered_batches(example, skip, count, section.repeat, training)


class GptPromptsProcessor(GptProcessor):
    """The prompts of text generation as batches, padded at the end; there are no labels.

    Generation itself does not read these batches, since its features are made from its results.
    """

    def create_dataset(self, training, skip, predicting=False):
        section = self.section
        tokenizer = load_tokenizer(
            section.tokenizer_type, section.vocab_file, section.encoder_file, section.eos_id
        )
        vocab_size = section.vocab_size or tokenizer.vocab_size
        limit = section.max_sequence_length
        prompts = read_prompts(section.prompt_file, tokenizer, vocab_size, limit)
        length = limit or max(len(prompt.tokens) for prompt in prompts)
        ids = np.zeros([len(prompts), length], np.int32)
        mask = np.ones_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt.tokens)] = prompt.tokens
            mask[row, : len(prompt.tokens)] = 0
        dataset = tf.data.Dataset.from_tensor_slices({"input_ids": ids, "input_mask": mask})
        batches = dataset.batch(section.batch_size, drop_remainder=training)
        return batches.skip(skip).prefetch(2)


PROCESSORS = {
    cls.__name__: cls
    for cls in (
        GptTfRecordsProcessor,
        GptHDF5DataProcessor,
        GptTextDataProcessor,
        GptPromptsProcessor,
    )
}
