"""The input functions of sentence classification: tab-separated files as they are, or TFRecords.

Files are tokenized when a run begins and held in memory, four bytes a token. The columns of each
task are in tasks.py. Every processor yields features ``input_ids``, ``input_mask`` (1 where there
is padding) and ``segment_ids`` [B, S] int32; with MNLI ``is_matched`` [B] int32; in prediction
``example_index`` [B] int32; and labels [B] int32.
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.classifier.encoding import PairEncoder, pad_rows
from modelzoo.bert.fine_tuning.classifier.params import RECORDS_PROCESSOR, TSV_PROCESSORS, Params
from modelzoo.bert.fine_tuning.classifier.tasks import find_files, read_rows
from modelzoo.bert.fine_tuning.cropping import crop_padding
from modelzoo.common.data import tf_records
from modelzoo.common.data.batches import BatchPlan, planned_batches, row_lengths, row_shape
from modelzoo.common.data.functions import InputFunctions

TOKENS = ("input_ids", "input_mask", "segment_ids")


class TsvDataProcessor:
    """Reads tab-separated files of single sentences or pairs.

    Args:
        section: ClassifierInput.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches, without the first `skip`.

        Evaluation and prediction (`predicting`) see every example, so their last batch may be
        smaller; prediction reads the files for it, in their order, and needs no labels.

        Raises:
            DataError: names the file and line of a bad row.
        """
        section = self.section
        use = "train" if training else "predict" if predicting else "eval"
        rows = read_examples(section, use)
        encoder = PairEncoder(section.vocab_file, section.do_lower, section.max_sequence_length)
        examples = encoder.encode([row.texts for row in rows])
        numbers = np.array([(row.label, row.is_matched) for row in rows], np.int32)
        shuffled = section.shuffle and use != "predict"
        plan = BatchPlan(
            [len(example.ids) for example in examples],
            section.batch_size,
            row_lengths(section),
            (section.shuffle_seed or 0) if shuffled else None,
            keep_rest=not training,
        )

        def assemble(chosen, length):
            padded = pad_rows([examples[place] for place in chosen], length, encoder.pad_id)
            parts = (*padded, *numbers[chosen].T, chosen.astype(np.int32))
            return dict(zip((*TOKENS, "label", "is_matched", "example_index"), parts))

        columns = dict.fromkeys(TOKENS, (row_shape(section), tf.int32))
        columns["label"] = ([], tf.int32)
        if section.task.has_parts:
            columns["is_matched"] = ([], tf.int32)
        if use == "predict":
            columns["example_index"] = ([], tf.int32)
        size = section.batch_size if training else None
        repeats = section.repeat and use != "predict"
        dataset = planned_batches(plan, assemble, columns, skip, size, repeats)
        return dataset.map(lambda batch: (batch, batch.pop("label")))

    def blank(self):
        """Returns a batch of zeros."""
        return blank(self.section, self.section.task.has_parts)


class GlueTfRecordsProcessor(tf_records.RecordProcessor):
    """Reads TFRecords of scripts/create_glue_tfrecords.py, the mask on disk 1 for a real token.

    Args:
        section: GlueRecordsInput.
    """

    def layout(self, predicting=False):
        """Returns the layout of a record; see tf_records.check_files."""
        tokens = tf_records.integers(TOKENS, self.section.max_sequence_length)
        return {**tokens, **tf_records.integers(("label", "is_matched"), 1)}

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches, without the first `skip`; evaluation sees every record.

        Raises:
            DataError: for a missing, truncated or misshapen file.
        """
        section = self.section
        dataset = tf_records.read_batches(section, self.layout(), skip, not training)

        def example(parsed):
            lengths = tf.reduce_sum(parsed["input_mask"], axis=1)
            label, matched = (parsed.pop(name)[:, 0] for name in ("label", "is_matched"))
            if section.buckets is not None:
                parsed = crop_padding(parsed, lengths, row_lengths(section))
            features = {**parsed, "input_mask": 1 - parsed["input_mask"]}
            if section.has_parts:
                features["is_matched"] = matched
            return features, label

        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(4)

    def blank(self):
        """Returns a batch of zeros."""
        return blank(self.section, self.section.has_parts)


def read_examples(section, use):
    """Reads the rows of an input section.

    Args:
        section: ClassifierInput.
        use: ``train``, ``eval`` or ``predict``; see tasks.find_files.

    Returns:
        A list of tasks.Row.

    Raises:
        DataError: names the file and line of a bad row.
    """
    files = find_files(section.data_dir, use, tf.logging.warning)
    return [row for path in files for row in read_rows(path, section.task, use != "predict")]


def blank(section, has_parts):
    """Returns features and labels of zeros, of an input section's shapes."""
    size, length = section.batch_size, section.max_sequence_length
    column = tf.zeros([size], tf.int32)
    features = dict.fromkeys(TOKENS, tf.zeros([size, length], tf.int32))
    return {**features, **({"is_matched": column} if has_parts else {})}, column


PROCESSORS = {
    **dict.fromkeys(TSV_PROCESSORS, TsvDataProcessor),
    RECORDS_PROCESSOR: GlueTfRecordsProcessor,
}
INPUTS = InputFunctions(Params, PROCESSORS)
