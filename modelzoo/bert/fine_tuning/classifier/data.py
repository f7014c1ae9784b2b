"""The data processors of sentence classification: tab-separated files, or TFRecords made of them.

Files are tokenized when a run begins and are held in memory, 4 bytes a token. Besides the features
of all fine-tunings there is ``is_matched`` [B] int32 for MNLI, and in prediction ``example_index``
[B] int32. Labels are [B] int32.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.classifier.params import RECORDS_PROCESSOR, TSV_PROCESSORS
from modelzoo.bert.fine_tuning.data import TOKENS, FineTuningProcessor
from modelzoo.common.data import record_files
from modelzoo.common.data.batches import BatchPlan, planned_batches, row_lengths, row_shape
from modelzoo.common.fine_tuning.encoding import pad_tokens, stack_rows
from modelzoo.common.fine_tuning.glue_files import PairEncoder
from modelzoo.common.fine_tuning.texts import read_examples


class TsvDataProcessor:
    """Reads tab-separated files of single sentences or pairs."""

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches, without the first `skip`.

        Evaluation and prediction see every example, so their last batch may be smaller. Prediction
        reads its own files, in order, and needs no labels.
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
            keep_remainder=not training,
        )

        def assemble(chosen, length):
            batch = [pad_tokens(examples[place], length, encoder.pad_id) for place in chosen]
            label, is_matched = numbers[chosen].T
            columns = {"label": label, "is_matched": is_matched, "example_index": chosen}
            return {**stack_rows(batch), **{k: v.astype(np.int32) for k, v in columns.items()}}

        columns = dict.fromkeys(TOKENS, (row_shape(section), tf.int32))
        columns["label"] = ([], tf.int32)
        if section.task.has_parts:
            columns["is_matched"] = ([], tf.int32)
        if use == "predict":
            columns["example_index"] = ([], tf.int32)
        size = section.batch_size if training else None
        repeats = section.repeat and use != "predict"
        dataset = planned_batches(plan, assemble, columns, skip, size, repeats)

        def features(batch):
            label = batch.pop("label")
            return {**batch, "input_mask": 1 - batch["input_mask"]}, label

        return dataset.map(features)

    def blank(self):
        size, length = self.section.batch_size, self.section.max_sequence_length
        column = tf.zeros([size], tf.int32)
        matched = {"is_matched": column} if self.section.task.has_parts else {}
        return {**dict.fromkeys(TOKENS, tf.zeros([size, length], tf.int32)), **matched}, column


class GlueTfRecordsProcessor(FineTuningProcessor):
    """Reads the records of preparation.py; the section is a GlueRecordsInput."""

    def layout(self, predicting=False):
        tokens = record_files.integers(TOKENS, self.section.max_sequence_length)
        return {**tokens, **record_files.integers(("label", "is_matched"), 1)}

    def split(self, batch):
        label, matched = (batch.pop(name)[:, 0] for name in ("label", "is_matched"))
        return {**batch, **({"is_matched": matched} if self.section.has_parts else {})}, label


PROCESSORS = {
    **dict.fromkeys(TSV_PROCESSORS, TsvDataProcessor),
    RECORDS_PROCESSOR: GlueTfRecordsProcessor,
}
