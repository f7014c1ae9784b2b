"""The input functions of token classification: TFRecords of scripts/create_ner_tfrecords.py.

Features are ``input_ids``, ``input_mask`` (1 where there is padding) and ``segment_ids`` [B, S]
int32, in prediction also ``sentence_ids`` [B, 1] and ``word_ids`` [B, S] int32; labels [B, S]
int32.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.cropping import crop_padding
from modelzoo.bert.fine_tuning.token_classifier.labels import read_label_names
from modelzoo.bert.fine_tuning.token_classifier.params import Params
from modelzoo.common.input import tf_records
from modelzoo.common.input.functions import InputFunctions
from modelzoo.common.input.planned_batches import row_lengths

RECORD_FEATURES = ("input_ids", "input_mask", "segment_ids", "label_ids")


class NerDataProcessor:
    """Reads TFRecords of tagged sentences, the mask on disk 1 for a real token.

    Args:
        section: NerInput.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches, without the first `skip`.

        Evaluation and prediction (`predicting`) see every record, so their last batch may be
        smaller. Prediction keeps whole rows and also reads which word a token begins.

        Raises:
            DataError: for a missing, truncated or misshapen file.
            ConfigError: if label_vocab_file is another file than it should be.
        """
        section = self.section
        length = section.max_sequence_length
        read_label_names(section.label_vocab_file)
        layout = tf_records.integers(RECORD_FEATURES, length)
        if predicting:
            layout["word_ids"] = (length, tf_records.INTEGER)
            layout["sentence_ids"] = (1, tf_records.INTEGER)
        dataset = tf_records.read_batches(section, layout, skip, not training)

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


INPUTS = InputFunctions(Params, {"NerDataProcessor": NerDataProcessor})
