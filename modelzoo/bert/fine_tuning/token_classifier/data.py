"""The input functions of token classification: TFRecords of scripts/create_ner_tfrecords.py.

Features are ``input_ids``, ``input_mask`` (1 where there is padding) and ``segment_ids`` [B, S]
int32, in prediction also ``sentence_ids`` [B, 1] and ``word_ids`` [B, S] int32; labels [B, S]
int32.
"""

from __future__ import annotations

from pathlib import Path

import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.cropping import crop_padding
from modelzoo.bert.fine_tuning.token_classifier.labels import read_label_names, require_same_labels
from modelzoo.bert.fine_tuning.token_classifier.params import Params
from modelzoo.common.data import tf_records
from modelzoo.common.data.batches import row_lengths
from modelzoo.common.data.functions import InputFunctions
from modelzoo.common.data.prepared import MANIFEST, read_facts

RECORD_FEATURES = ("input_ids", "input_mask", "segment_ids", "label_ids")


class NerDataProcessor(tf_records.RecordProcessor):
    """Reads TFRecords of tagged sentences, the mask on disk 1 for a real token.

    Args:
        section: NerInput.
    """

    def layout(self, predicting=False):
        """Returns the layout of a record; see tf_records.check_files."""
        length = self.section.max_sequence_length
        layout = tf_records.integers(RECORD_FEATURES, length)
        if predicting:
            layout["word_ids"] = (length, tf_records.INTEGER)
            layout["sentence_ids"] = (1, tf_records.INTEGER)
        return layout

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches, without the first `skip`.

        Evaluation and prediction (`predicting`) see every record, so their last batch may be
        smaller. Prediction keeps whole rows and also reads which word a token begins.

        Raises:
            DataError: for a missing, truncated or misshapen file.
            ConfigError: if label_vocab_file is another file than it should be, or has other labels
                than the records.
        """
        section = self.section
        dataset = tf_records.read_batches(section, self.layout(predicting), skip, not training)
        # Prediction reads no labels; its records may have been made with fewer than the model has.
        if predicting:
            read_label_names(section.label_vocab_file)
        else:
            check_label_names(section)

        def example(parsed):
            if section.buckets is not None and not predicting:
                lengths = tf.reduce_sum(parsed["input_mask"], axis=1)
                parsed = crop_padding(parsed, lengths, row_lengths(section))
            labels = parsed.pop("label_ids")
            return {**parsed, "input_mask": 1 - parsed["input_mask"]}, labels

        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(4)

    def blank(self):
        """Returns a batch of zeros."""
        zeros = tf.zeros([self.section.batch_size, self.section.max_sequence_length], tf.int32)
        return {"input_ids": zeros, "input_mask": zeros, "segment_ids": zeros}, zeros


def check_label_names(section):
    """Compares a section's label_vocab_file with the manifests of its records, where there are any.

    Args:
        section: NerInput.

    Returns:
        The labels in the order of their numbers.

    Raises:
        ConfigError: if it is another file than it should be, or the labels differ.
        DataError: if it is not there.
    """
    names = read_label_names(section.label_vocab_file)
    for folder in [section.data_dir] if isinstance(section.data_dir, str) else section.data_dir:
        facts = read_facts(folder)
        if facts is not None and facts.labels is not None:
            require_same_labels(
                section.label_vocab_file, names, Path(folder, MANIFEST), facts.labels
            )
    return names


INPUTS = InputFunctions(Params, {"NerDataProcessor": NerDataProcessor})
