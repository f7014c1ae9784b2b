"""The data processor of question answering: TFRecords, and in prediction SQuAD's json.

Segment 1 is the paragraph, and segment 2 its tokens that `mark_question_words` finds in the
question. In prediction there is also ``unique_ids`` [B, 1] int32, the number of the window. Labels
are [B, 2] int32, the positions of an answer's first and last token.
"""

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from cerebras_tf.user_files import open_regular
from modelzoo.bert.data import bucketing, real_tokens
from modelzoo.bert.fine_tuning.data import TOKENS, FineTuningProcessor
from modelzoo.common.data import record_files
from modelzoo.common.fine_tuning.encoding import pad_tokens
from modelzoo.common.fine_tuning.texts import read_windows

LABELS = ("start_positions", "end_positions")


class QuestionAnsweringDataProcessor(FineTuningProcessor):
    """Reads windows of questions and paragraphs; the section is a QuestionAnsweringInput."""

    predicts_records = False
    row_id = "unique_ids"

    def layout(self, predicting=False):
        tokens = record_files.integers(TOKENS, self.section.max_sequence_length)
        return {**tokens, **record_files.integers(LABELS, 1)}

    def files(self):
        """Returns the paths of the records."""
        path = self.section.data_file
        if not path:
            return super().files()
        try:
            open_regular(path).close()
        except OSError as error:
            raise DataError(
                f"{path}: data_file must be a TFRecord file. Received: {error.strerror}. Write it "
                "with `cerebras-tf prepare squad`."
            ) from error
        return [path]

    def group(self, keep_remainder):
        """Returns the function that batches records of like lengths, None without buckets."""
        return bucketing(self.section, real_tokens(self.section), keep_remainder)

    def change(self, batch):
        """Returns a batch with question words marked, if `mark_question_words` is set."""
        return mark_question_words(batch) if self.section.mark_question_words else batch

    def split(self, batch):
        labels = tf.concat([batch.pop(name) for name in LABELS], axis=1)
        return batch, labels

    def read_examples(self):
        """Reads the windows of predict_file; see FineTuningProcessor."""
        windows, pad_id = read_windows(self.section)
        return [(number, window) for number, (_, _, window) in enumerate(windows)], pad_id, {}

    def encode_row(self, example, length, pad_id):
        """Returns the features of a window as arrays."""
        return pad_tokens(example, length, pad_id)


def mark_question_words(batch):
    """Puts tokens of the paragraph that the question has too into segment 2.

    Sources: Chen et al., Reading Wikipedia to Answer Open-Domain Questions (2017), section 3.2
    (exact match); Weissenborn et al., Making Neural QA as Simple as Possible but not Simpler
    (2017), section 3 (word in question).

    Args:
        batch: ``input_ids``, ``input_mask`` (1 for a token), ``segment_ids`` [B, S] of integers.

    Returns:
        `batch` with other ``segment_ids``.
    """
    ids, segments = batch["input_ids"], batch["segment_ids"]
    asked = batch["input_mask"] * (1 - segments)  # [CLS], the question, [SEP]
    last = tf.reduce_sum(asked, axis=1, keepdims=True) - 1
    places = tf.range(tf.shape(ids)[1], dtype=ids.dtype)[None, :]
    words = tf.where((places > 0) & (places < last), ids, -tf.ones_like(ids))
    same = tf.reduce_any(tf.equal(ids[:, :, None], words[:, None, :]), axis=2)
    return {**batch, "segment_ids": segments * (1 + tf.cast(same, segments.dtype))}
