"""The input functions of sentence classification: tab-separated files as they are, or TFRecords.

Files are tokenized when a run begins and held in memory, four bytes a token. It deliberately knows
no task's columns; those are in tasks.py. Every processor yields features ``input_ids``,
``input_mask`` (1 where there is padding) and ``segment_ids`` [B, S] int32; with MNLI ``is_matched``
[B] int32; in prediction ``example_index`` [B] int32; and labels [B] int32.
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.classifier.encoding import PairEncoder, pad_rows
from modelzoo.bert.fine_tuning.classifier.params import RECORDS_PROCESSOR, TSV_PROCESSORS, Params
from modelzoo.bert.fine_tuning.classifier.tasks import find_files, read_rows
from modelzoo.bert.fine_tuning.cropping import crop_padding
from modelzoo.common.input import tf_records
from modelzoo.common.input.batch_plan import BatchPlan
from modelzoo.common.input.functions import InputFunctions


class TsvDataProcessor:
    """Reads tab-separated files of single sentences or pairs.

    Args:
        section: ClassifierInput.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, keep_rest=False):
        """Returns the batches, without the first `skip`.

        Evaluation and prediction (`keep_rest`) see every example, so their last batch may be
        smaller; prediction reads the files for it, in their order, and needs no labels.

        Raises:
            DataError: names the file and line of a bad row.
        """
        section = self.section
        use = "train" if training else "predict" if keep_rest else "eval"
        rows = read_examples(section, use)
        encoder = PairEncoder(section.vocab_file, section.do_lower, section.max_sequence_length)
        examples = encoder.encode([row.texts for row in rows])
        numbers = np.array([(row.label, row.is_matched) for row in rows], np.int32)
        shuffled = section.shuffle and use != "predict"
        plan = BatchPlan(
            [len(example.ids) for example in examples],
            section.batch_size,
            bounds(section),
            (section.shuffle_seed or 0) if shuffled else None,
            keep_rest=not training,
        )

        def assemble(number):
            chosen, length = plan.batch(number)
            padded = pad_rows([examples[place] for place in chosen], length, encoder.pad_id)
            return (*padded, numbers[chosen, 0], numbers[chosen, 1], chosen.astype(np.int32))

        def batch(number):
            tensors = tf.numpy_function(assemble, [number], [tf.int32] * 6)
            size = section.batch_size if training else None
            length = section.max_sequence_length if section.buckets is None else None
            for place, tensor in enumerate(tensors):
                tensor.set_shape([size, length] if place < 3 else [size])
            return self._features(tensors, use), tensors[3]

        repeats = section.repeat and use != "predict"
        last = tf.int64.max if repeats else plan.batches_per_epoch
        return tf.data.Dataset.range(skip, last).map(batch).prefetch(4)

    def _features(self, tensors, use):
        features = dict(zip(("input_ids", "input_mask", "segment_ids"), tensors))
        if self.section.task.has_parts:
            features["is_matched"] = tensors[4]
        if use == "predict":
            features["example_index"] = tensors[5]
        return features

    def blank(self):
        """Returns a batch of zeros."""
        size, length = self.section.batch_size, self.section.max_sequence_length
        rows, column = tf.zeros([size, length], tf.int32), tf.zeros([size], tf.int32)
        return self._features([rows, rows, rows, column, column], "train"), column


class GlueTfRecordsProcessor:
    """Reads TFRecords of scripts/create_glue_tfrecords.py, the mask on disk 1 for a real token.

    Args:
        section: GlueRecordsInput.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, keep_rest=False):
        """Returns the batches, without the first `skip`; evaluation sees every record.

        Raises:
            DataError: for a missing, truncated or misshapen file.
        """
        section = self.section
        length = section.max_sequence_length
        layout = tf_records.integers(("input_ids", "input_mask", "segment_ids"), length)
        layout.update(tf_records.integers(("label", "is_matched"), 1))
        dataset = tf_records.read_batches(section, layout, skip, not training)

        def example(parsed):
            lengths = tf.reduce_sum(parsed["input_mask"], axis=1)
            label, matched = (parsed.pop(name)[:, 0] for name in ("label", "is_matched"))
            if section.buckets is not None:
                parsed = crop_padding(parsed, lengths, bounds(section))
            features = {**parsed, "input_mask": 1 - parsed["input_mask"]}
            if section.has_parts:
                features["is_matched"] = matched
            return features, label

        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(4)

    def blank(self):
        """Returns a batch of zeros."""
        size, length = self.section.batch_size, self.section.max_sequence_length
        rows, column = tf.zeros([size, length], tf.int32), tf.zeros([size], tf.int32)
        features = {"input_ids": rows, "input_mask": rows, "segment_ids": rows}
        return {**features, **({"is_matched": column} if self.section.has_parts else {})}, column


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
    files = find_files(section.data_dir, use)
    return [row for path in files for row in read_rows(path, section.task, use != "predict")]


def bounds(section):
    """Returns the lengths that rows of a batch may have."""
    return [*(section.buckets or ()), section.max_sequence_length]


PROCESSORS = {
    **dict.fromkeys(TSV_PROCESSORS, TsvDataProcessor),
    RECORDS_PROCESSOR: GlueTfRecordsProcessor,
}
INPUTS = InputFunctions(Params, PROCESSORS)
