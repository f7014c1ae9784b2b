"""The input functions of extractive summarization: TFRecords, and in prediction articles as text.

Records come from preparation.py. Features are ``input_ids``, ``input_mask`` (1 where there is
padding) and ``segment_ids`` [B, S] int32, ``cls_indices`` [B, C] int32 and ``cls_weights`` [B, C]
float32 (1 where there is a sentence); where records hold them ``highlight_ids`` [B, H] int32; in
prediction ``article_ids`` [B, 1] int32; labels [B, C] int32.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow.compat.v1 as tf

from cerebras_tf.errors import ConfigError
from modelzoo.bert.fine_tuning.cropping import crop_padding
from modelzoo.bert.fine_tuning.extractive_summarization.encoding import ArticleEncoder, pad_article
from modelzoo.bert.fine_tuning.extractive_summarization.params import Params
from modelzoo.common.data import tf_records
from modelzoo.common.data.batches import predict_batches, row_lengths, row_shape
from modelzoo.common.data.functions import InputFunctions
from modelzoo.common.data.preparation import cnn_dailymail, input_files

TOKENS = ("input_ids", "input_mask", "segment_ids")


class BertSumTfRecordsProcessor(tf_records.RecordProcessor):
    """Reads articles cut into sentences.

    Args:
        section: BertSumInput.
    """

    predicts_records = False

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches, without the first `skip`.

        Evaluation sees every record, so its last batch may be smaller; so does prediction
        (`predicting`), which reads `predict_file` in its order.

        Raises:
            DataError: for a missing, truncated or misshapen file.
            ConfigError: if prediction lacks predict_file or vocab_file.
        """
        if predicting:
            return self._predict_batches(skip)
        section = self.section
        dataset = tf_records.read_batches(section, self.layout(), skip, not training)

        def example(parsed):
            tokens = {name: parsed.pop(name) for name in TOKENS}
            if section.original_records:
                tokens["input_mask"] = 1 - tokens["input_mask"]
            if section.buckets is not None:
                lengths = tf.reduce_sum(tokens["input_mask"], axis=1)
                tokens = crop_padding(tokens, lengths, row_lengths(section))
            tokens["input_mask"] = 1 - tokens["input_mask"]
            labels = parsed.pop("labels")
            return {**tokens, **parsed}, labels

        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(4)

    def layout(self, predicting=False):
        """Returns the layout of a record; see tf_records.check_files."""
        section = self.section
        layout = tf_records.integers(TOKENS, section.max_sequence_length)
        layout.update(tf_records.integers(("cls_indices", "labels"), section.max_cls_tokens))
        layout["cls_weights"] = (section.max_cls_tokens, tf_records.FLOAT)
        if not section.original_records:
            layout["highlight_ids"] = (section.max_highlight_tokens, tf_records.INTEGER)
        return layout

    def _predict_batches(self, skip):
        section = self.section
        every, pad_id = read_articles(section)
        numbers = np.array([n for n, article in enumerate(every) if article.sentences], np.int32)
        articles = [every[number] for number in numbers]
        sentences = section.max_cls_tokens

        def assemble(chosen, length):
            rows = [pad_article(articles[place], length, sentences, pad_id) for place in chosen]
            batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            batch["input_mask"] = 1 - batch["input_mask"]
            return {**batch, "article_ids": numbers[chosen][:, None]}

        columns = {
            **dict.fromkeys(TOKENS, (row_shape(section), tf.int32)),
            "cls_indices": ([sentences], tf.int32),
            "cls_weights": ([sentences], tf.float32),
            "article_ids": ([1], tf.int32),
        }
        lengths = [len(article.ids) for article in articles]
        dataset = predict_batches(section, lengths, assemble, columns, skip)
        return dataset.map(lambda batch: (batch, batch["article_ids"]))

    def blank(self):
        """Returns a batch of zeros."""
        batch = {
            name: tf.zeros(
                [self.section.batch_size, length],
                tf.float32 if kind == tf_records.FLOAT else tf.int32,
            )
            for name, (length, kind) in self.layout().items()
        }
        labels = batch.pop("labels")
        return batch, labels


@functools.lru_cache(maxsize=1)
def read_articles(section):
    """Encodes the articles of a section's predict_file; the last section's stay in memory.

    Args:
        section: BertSumInput.

    Returns:
        A tuple of EncodedArticle and the number of the padding token.

    Raises:
        ConfigError: if predict_file or vocab_file is missing.
        DataError: names the file and line of a bad row.
    """
    for key in ("predict_file", "vocab_file"):
        if getattr(section, key) is None:
            raise ConfigError(
                f"predict_input.{key}: is required to predict. Received: None. Name "
                + ("articles." if key == "predict_file" else "the vocab.txt of the model.")
            )
    encoder = ArticleEncoder(section.encoding)
    files = input_files.find_inputs(section.predict_file, cnn_dailymail.SUFFIXES, tf.logging.info)
    rows = (row for path in files for row in cnn_dailymail.read_articles(path))
    return tuple(encoder.encode(*row) for row in rows), encoder.pad_id


INPUTS = InputFunctions(Params, {"BertSumTfRecordsProcessor": BertSumTfRecordsProcessor})
