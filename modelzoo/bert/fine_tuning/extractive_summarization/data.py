"""The data processor of extractive summarization: TFRecords, and in prediction articles as text.

Besides the features of all fine-tunings there are ``cls_indices`` [B, C] int32 and ``cls_weights``
[B, C] float32 (1 for a sentence), ``highlight_ids`` [B, H] int32 if the records hold them, and in
prediction ``article_ids`` [B, 1] int32. Labels are [B, C] int32.
"""

import tensorflow.compat.v1 as tf

from modelzoo.bert.fine_tuning.data import TOKENS, FineTuningProcessor
from modelzoo.common.data import record_files
from modelzoo.common.fine_tuning.article_encoding import pad_article
from modelzoo.common.fine_tuning.texts import read_articles


class BertSumTfRecordsProcessor(FineTuningProcessor):
    """Reads articles split into sentences; the section is a BertSumInput."""

    predicts_records = False
    row_id = "article_ids"

    def layout(self, predicting=False):
        section = self.section
        layout = record_files.integers(TOKENS, section.max_sequence_length)
        layout.update(record_files.integers(("cls_indices", "labels"), section.max_cls_tokens))
        layout["cls_weights"] = (section.max_cls_tokens, record_files.FLOAT)
        if not section.original_records:
            layout["highlight_ids"] = (section.max_highlight_tokens, record_files.INTEGER)
        return layout

    def change_records(self, batch):
        """Returns a batch of records with the mask 1 for a token."""
        original = self.section.original_records
        return {**batch, "input_mask": 1 - batch["input_mask"]} if original else batch

    def split(self, batch):
        labels = batch.pop("labels")
        return batch, labels

    def read_examples(self):
        """Reads the articles of predict_file that have sentences; see FineTuningProcessor."""
        articles, pad_id = read_articles(self.section)
        count = [self.section.max_cls_tokens]
        columns = {"cls_indices": (count, tf.int32), "cls_weights": (count, tf.float32)}
        return (
            [(n, article) for n, article in enumerate(articles) if article.sentences],
            pad_id,
            columns,
        )

    def encode_row(self, example, length, pad_id):
        """Returns the features of an article as arrays."""
        return pad_article(example, length, self.section.max_cls_tokens, pad_id)
