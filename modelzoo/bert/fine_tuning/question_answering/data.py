"""The input functions of question answering: TFRecords, and in prediction SQuAD's json itself.

Records come from preparation.py. Features are ``input_ids``, ``input_mask`` (1 where there is
padding) and ``segment_ids`` [B, S] int32 (1 for the paragraph, 2 for its tokens that
`mark_question_words` finds in the question), in prediction also ``unique_ids`` [B, 1] int32, the
number of the window; labels [B, 2] int32, the places of an answer's first and last token.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow.compat.v1 as tf

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.data import bucketing
from modelzoo.bert.fine_tuning.cropping import crop_padding
from modelzoo.bert.fine_tuning.question_answering.encoding import WindowEncoder, pad_window
from modelzoo.bert.fine_tuning.question_answering.params import Params
from modelzoo.bert.fine_tuning.question_answering.preparation import chosen_articles
from modelzoo.bert.fine_tuning.question_answering.squad_files import read_articles
from modelzoo.common.data import tf_records
from modelzoo.common.data.batches import predict_batches, row_lengths, row_shape
from modelzoo.common.data.functions import InputFunctions

TOKENS = ("input_ids", "input_mask", "segment_ids")
LABELS = ("start_positions", "end_positions")


class QuestionAnsweringDataProcessor(tf_records.RecordProcessor):
    """Reads windows of questions and paragraphs, the mask on disk 1 for a real token.

    Args:
        section: QuestionAnsweringInput.
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
        check_exists([section.data_file] if section.data_file else [])
        group = bucketing(section, tokens_of(section.max_sequence_length), not training)
        files, layout = self.files(), self.layout()
        dataset = tf_records.read_batches(section, layout, skip, not training, group, files)

        def example(parsed):
            if section.mark_question_words:
                parsed = mark_question_words(parsed)
            if section.buckets is not None:
                lengths = tf.reduce_sum(parsed["input_mask"], axis=1)
                parsed = crop_padding(parsed, lengths, row_lengths(section))
            labels = tf.concat([parsed.pop(name) for name in LABELS], axis=1)
            return {**parsed, "input_mask": 1 - parsed["input_mask"]}, labels

        return dataset.map(example, num_parallel_calls=2, deterministic=True).prefetch(4)

    def layout(self, predicting=False):
        """Returns the layout of a record; see tf_records.check_files."""
        tokens = tf_records.integers(TOKENS, self.section.max_sequence_length)
        return {**tokens, **tf_records.integers(LABELS, 1)}

    def files(self):
        """Returns the paths of the records."""
        return [self.section.data_file] if self.section.data_file else super().files()

    def _predict_batches(self, skip):
        section = self.section
        windows, pad_id = read_windows(section)

        def assemble(chosen, length):
            rows = [pad_window(windows[place][2], length, pad_id) for place in chosen]
            numbers = chosen[:, None].astype(np.int32)
            return dict(zip((*TOKENS, "unique_ids"), (*map(np.stack, zip(*rows)), numbers)))

        columns = dict.fromkeys(TOKENS, (row_shape(section), tf.int32))
        columns["unique_ids"] = ([1], tf.int32)
        lengths = [len(window.ids) for _, _, window in windows]
        dataset = predict_batches(section, lengths, assemble, columns, skip)

        def example(batch):
            if section.mark_question_words:
                batch = mark_question_words(batch)
            return {**batch, "input_mask": 1 - batch["input_mask"]}, batch["unique_ids"]

        return dataset.map(example)

    def blank(self):
        """Returns a batch of zeros."""
        size, length = self.section.batch_size, self.section.max_sequence_length
        return {name: tf.zeros([size, length], tf.int32) for name in TOKENS}, tf.zeros(
            [size, 2], tf.int32
        )


def mark_question_words(batch):
    """Puts tokens of the paragraph that the question has too into segment 2.

    Sources: Chen et al., Reading Wikipedia to Answer Open-Domain Questions (2017), section 3.2
    (exact match); Weissenborn et al., Making Neural QA as Simple as Possible but not Simpler
    (2017), section 3 (word in question).

    Args:
        batch: ``input_ids``, ``input_mask`` (1 = token), ``segment_ids`` [B, S] of integers.

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


def check_exists(files):
    """Raises a DataError if one of the files cannot be opened."""
    for path in files:
        try:
            open(path, "rb").close()
        except OSError as error:
            raise DataError(
                f"{path}: data_file must be a TFRecord file. Received: {error.strerror}. Make it "
                "with `cerebras-tf prepare squad`, or scripts/create_squad_tfrecords.py."
            ) from error


def tokens_of(length):
    """Makes a function from a serialized record to its number of tokens."""
    column = {"input_mask": tf.io.FixedLenFeature([length], tf.int64)}
    return lambda record: tf.reduce_sum(tf.io.parse_single_example(record, column)["input_mask"])


@functools.lru_cache(maxsize=1)
def read_windows(section):
    """Cuts a section's predict_file into windows; the last section's stay in memory.

    Args:
        section: QuestionAnsweringInput.

    Returns:
        A tuple of (Question, Context with its text, Window) and the number of the padding token.

    Raises:
        ConfigError: if predict_file or vocab_file is missing.
        DataError: if the file is not SQuAD's, or two questions have one id.
    """
    for key in ("predict_file", "vocab_file"):
        if getattr(section, key) is None:
            raise ConfigError(
                f"predict_input.{key}: is required to predict. Received: None. Name "
                + ("SQuAD's json." if key == "predict_file" else "the vocab.txt of the model.")
            )
    encoder = WindowEncoder(section.encoding)
    first, last = chosen_articles(section.predict_file, section.articles)
    windows = []
    for article in read_articles(section.predict_file)[first:last]:
        for paragraph in article:
            context = encoder.context(paragraph.context)
            for question in paragraph.questions:
                shown = (paragraph.context, context.offsets)
                windows += [
                    (question, shown, window) for window in encoder.windows(question.text, context)
                ]
    if not windows:
        raise DataError(
            f"{section.predict_file}: must hold a question to predict. Received: none in articles "
            f"{first} to {last}. Name another file, or other articles."
        )
    return tuple(windows), encoder.pad_id


INPUTS = InputFunctions(Params, {"QuestionAnsweringDataProcessor": QuestionAnsweringDataProcessor})
