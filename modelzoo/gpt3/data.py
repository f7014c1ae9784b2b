"""The input of GPT-2 and GPT-3: data processors and input functions. Tokenizes nothing but bytes.

Every processor yields features ``input_ids`` [B, S] int32 and ``input_mask`` [B, S] int32 (1 where
there is padding), and labels [B, S] int32, the next tokens.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from modelzoo.common.input import resume, text_files, tf_records
from modelzoo.common.params import params_from_dict
from modelzoo.gpt3.params import Params

RECORD_FEATURES = ("input_ids", "input_mask", "labels")


class GptTfRecordsProcessor:
    """Reads TFRecords with int64 [S] features input_ids, input_mask (1 = real token) and labels.

    Args:
        section: GptTfRecordsInput.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, keep_rest=False):
        """Returns the batches, without the first `skip`; `training` makes no difference here.

        With `keep_rest` the last batch may be smaller than the others.

        Raises:
            DataError: for a missing, truncated or misshapen file.
        """
        section = self.section
        files = tf_records.find_record_files(section.data_dir)
        least = 1 if keep_rest else section.batch_size
        tf_records.check_files(files, RECORD_FEATURES, section.max_sequence_length, least)
        parse = tf_records.parse_integers(RECORD_FEATURES, section.max_sequence_length)

        def example(records):
            parsed = parse(records)
            features = {"input_ids": parsed["input_ids"], "input_mask": 1 - parsed["input_mask"]}
            return features, parsed["labels"]

        dataset = tf_records.record_batches(section, files, skip, keep_rest)
        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(2)


class GptTextDataProcessor:
    """Reads text files as bytes: tokens 0 to 255, and 256 at the end of each file.

    Args:
        section: GptTextDataInput.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, keep_rest=False):
        """Returns the batches of one split of the files, without the first `skip`.

        With `keep_rest` the last batch may be smaller than the others.

        Raises:
            DataError: if files are missing or too few.
        """
        section = self.section
        files = text_files.find_text_files(section.data_dir, section.file_patterns)
        files = text_files.split_files(files, section.eval_fraction, training)
        seed = (section.shuffle_seed or 0) if section.shuffle else None
        length, batch_size = section.max_sequence_length, section.batch_size
        shape = [None if keep_rest else batch_size, length + 1]
        windows = text_files.Windows(
            text_files.read_tokens(files), length, batch_size, seed, keep_rest
        )

        def example(number):
            tokens = tf.ensure_shape(tf.numpy_function(windows.batch, [number], tf.int32), shape)
            ids, labels = tokens[:, :-1], tokens[:, 1:]
            return {"input_ids": ids, "input_mask": tf.zeros_like(ids)}, labels

        last = tf.int64.max if section.repeat else windows.batches_per_epoch
        return tf.data.Dataset.range(skip, last).map(example).prefetch(2)


PROCESSORS = {cls.__name__: cls for cls in (GptTfRecordsProcessor, GptTextDataProcessor)}


def train_input_fn(params):
    """Returns the training batches, going on where the latest checkpoint of model_dir stands."""
    params = params_from_dict(Params, params)
    per_step = params.optimizer.grad_accum_steps
    skip = resume.batches_to_skip(params.train_input, params.runconfig, per_step)
    return _processor(params.train_input).create_dataset(True, skip)


def eval_input_fn(params):
    """Returns the evaluation batches."""
    section = params_from_dict(Params, params).eval_input
    return _processor(section).create_dataset(False, section.skip_steps or 0)


def predict_input_fn(params):
    """Returns batches of features without labels; every example, so the last may be smaller."""
    section = params_from_dict(Params, params).predict_input
    dataset = _processor(section).create_dataset(False, section.skip_steps or 0, keep_rest=True)
    return dataset.map(lambda features, labels: features)


def blank_input_fn(params):
    """Returns training batches of zeros, of the shapes that data would have; reads no file."""
    section = params_from_dict(Params, params).train_input
    ids = tf.zeros([section.batch_size, section.max_sequence_length], tf.int32)
    return tf.data.Dataset.from_tensors(({"input_ids": ids, "input_mask": ids}, ids)).repeat()


def _processor(section):
    return PROCESSORS[section.data_processor](section)
