"""The data processors of BERT pre-training.

Every processor yields features ``input_ids`` [B, S] int32, ``input_mask`` [B, S] int32 (1 for
padding), ``masked_lm_positions``, ``masked_lm_ids`` [B, P] int32 and
``masked_lm_weights`` [B, P] float32. B batch, S sequence, P masked positions, T <= S tokens.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from modelzoo.bert.masking import TokenMasker, mask_rows, mask_settings
from modelzoo.bert.params import Params
from modelzoo.common.data import record_files, text_files, tf_records
from modelzoo.common.data.batches import numbered_batches
from modelzoo.common.data.functions import InputFunctions

PAD, CLS, SEP, MASK = range(4)  # tokens of BertTextDataProcessor
FIRST_BYTE = 4  # byte b is token b + 4
LABELS = "next_sentence_labels"
DRAWN = ("input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


class BertTfRecordsProcessor(tf_records.RecordProcessor):
    """Reads TFRecords for masked words and the next sentence.

    They hold int64 input_ids, input_mask (1 = real token), segment_ids [S]; masked_lm_positions,
    masked_lm_ids [P]; next_sentence_labels [1] (1 = random); and float32 masked_lm_weights [P].
    Features have ``segment_ids`` [B, S] int32; labels are the next sentence labels [B, 1] int32.
    """

    token_columns: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")

    def create_dataset(self, training, skip, predicting=False):
        group = bucketing(self.section, real_tokens(self.section), not training)
        dataset = tf_records.read_batches(self.section, self.layout(), skip, not training, group)
        return dataset.map(self._example, num_parallel_calls=2, deterministic=True).prefetch(2)

    def blank(self):
        return self._example(self.blank_records())

    def layout(self, predicting=False):
        length, places = self.section.max_sequence_length, self.section.max_predictions_per_seq
        return {
            **record_files.integers(self.token_columns, length),
            **record_files.integers(("masked_lm_positions", "masked_lm_ids"), places),
            "masked_lm_weights": (places, record_files.FLOAT),
            **({LABELS: (1, record_files.INTEGER)} if self.section.has_next_sentence else {}),
        }

    def _example(self, parsed):
        features = dict(parsed)
        labels = features.pop(LABELS, features["masked_lm_ids"])
        features["input_mask"] = 1 - features["input_mask"]
        return finish_features(features, self.section), labels


class BertMlmOnlyTfRecordsStaticMaskProcessor(BertTfRecordsProcessor):
    """Reads TFRecords for masked words alone: as BertTfRecordsProcessor's, without segments.

    Labels are the masked words, as in the features.
    """

    token_columns = ("input_ids", "input_mask")


class BertMlmOnlyTfRecordsDynamicMaskProcessor:
    """Reads TFRecords of tokens and masks them randomly while reading.

    A record is a tf.train.SequenceExample with the feature list ``tokens``: [CLS], WordPiece
    tokens, [SEP]. Masks are a function of `shuffle_seed` and the position in the stream: they
    differ between epochs, and are the same after a resume. Labels are the masked words, as in the
    features.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, predicting=False):
        section = self.section
        files = record_files.find_record_files(section.data_dir)
        record_files.check_section(section, files)
        record_files.check_files(files, {}, section.batch_size if training else 1)
        for path in files:
            check_tokens(path, record_files.read_first_record(path), section.max_sequence_length)
        masker = TokenMasker(section)
        group = bucketing(section, _token_count, not training)
        dataset = tf_records.record_batches(section, files, skip, not training, group)

        def example(number, records):
            tokens, lengths = _parse_tokens(records)
            return _masked_batch(masker.batch, [number, tokens, lengths], section, training)

        return dataset.enumerate(skip).map(example).prefetch(2)

    def blank(self):
        return _blank(self.section)


class BertTextDataProcessor:
    """Reads S - 2 bytes of text files between [CLS] and [SEP], and masks them randomly.

    Tokens 0 to 3 are [PAD], [CLS], [SEP] (also at the end of a file) and [MASK], then come the 256
    bytes. Labels are the masked bytes, as in the features.
    """

    def __init__(self, section):
        self.section = section

    def create_dataset(self, training, skip, predicting=False):
        """Returns the batches of one split of the files, without the first `skip`.

        See ``InputFunctions``.
        """
        section = self.section
        seed = section.shuffle_seed or 0
        length = section.max_sequence_length - 2
        windows = text_files.open_windows(section, training, length, not training)
        settings = mask_settings(section, MASK, (FIRST_BYTE, section.vocab_size))

        def batch(number):
            tokens = windows.batch(number)[:, :length]
            ids = np.where(tokens == text_files.END_OF_DOCUMENT, SEP, tokens + FIRST_BYTE)
            rows = [np.concatenate([[CLS], row, [SEP]]).astype(np.int32) for row in ids]
            allowed = [row >= FIRST_BYTE for row in rows]
            generator = np.random.default_rng([seed, int(number)])
            return mask_rows(rows, allowed, None, settings, section, generator)

        def example(number):
            return _masked_batch(batch, [number], section, training)

        count = windows.batches_per_epoch
        return numbered_batches(example, skip, count, section.repeat, training)

    def blank(self):
        return _blank(self.section)


def finish_features(features, section):
    """Scales the weights of masked words and sets pad ids, by the keys of the input section."""
    weights = features["masked_lm_weights"]
    for name, key in (("input_ids", "input_pad_id"), ("segment_ids", "segment_pad_id")):
        pad = getattr(section, key, None)
        if pad is not None and name in features:
            real = tf.equal(features["input_mask"], 0)
            features[name] = tf.where(real, features[name], tf.fill(tf.shape(real), pad))
    pad = getattr(section, "mlm_pad_id", None)
    if pad is not None:
        ids = features["masked_lm_ids"]
        features["masked_lm_ids"] = tf.where(weights > 0, ids, tf.fill(tf.shape(ids), pad))
    if section.scale_mlm_weights:
        rows = tf.cast(tf.shape(weights)[0], tf.float32)
        total = tf.maximum(tf.reduce_sum(weights), 1.0e-5)
        features["masked_lm_weights"] = weights * (rows / total)
    return features


def bucketing(section, length_of, keep_remainder):
    """Returns a function that batches records of similar lengths together, None without buckets.

    Args:
        section: input section. Bucket i holds lengths from bound i - 1 (included) to bound i.
    """
    if section.buckets is None:
        return None
    bounds = section.buckets
    if isinstance(bounds, int):
        length = section.max_sequence_length
        bounds = [-(-length * i // bounds) for i in range(1, bounds)]

    def bucket(record):
        reached = tf.cast(length_of(record), tf.int64) >= tf.constant(bounds, tf.int64)
        return tf.reduce_sum(tf.cast(reached, tf.int64))

    def batch(_, records):
        return records.batch(section.batch_size, drop_remainder=not keep_remainder)

    return lambda dataset: dataset.group_by_window(bucket, batch, section.batch_size)


def check_tokens(where, record, length):
    """Checks a record with the feature list ``tokens``."""
    try:
        example = tf.train.SequenceExample.FromString(record)
        tokens = example.feature_lists.feature_list["tokens"].feature
    except Exception as error:  # protobuf's own error type differs between its implementations
        raise DataError(
            f"{where}: must be a TFRecord file of tf.train.SequenceExample. Received: another "
            f"record ({error}). Make the file again."
        ) from error
    if not 0 < len(tokens) <= length:
        raise DataError(
            f"{where}: each record must have a feature list `tokens` of 1 to {length} tokens. "
            f"Received: {len(tokens)} tokens. Make the file with --mlm_only --disable_masking, or "
            "set max_sequence_length to its length."
        )


def real_tokens(section):
    """Returns a function from a serialized record to the number of its tokens."""
    length = section.max_sequence_length
    column = {"input_mask": tf.io.FixedLenFeature([length], tf.int64)}
    return lambda record: tf.reduce_sum(tf.io.parse_single_example(record, column)["input_mask"])


def _token_count(record):
    column = {"tokens": tf.io.FixedLenSequenceFeature([], tf.string)}
    _, parsed = tf.io.parse_single_sequence_example(record, sequence_features=column)
    return tf.shape(parsed["tokens"])[0]


def _parse_tokens(records):
    column = {"tokens": tf.io.FixedLenSequenceFeature([], tf.string)}
    _, parsed, lengths = tf.io.parse_sequence_example(records, sequence_features=column)
    return parsed["tokens"], lengths["tokens"]


def _masked_batch(function, inputs, section, training):
    """Returns features and labels from a function of `inputs` with the results of `mask_rows`."""
    batch = section.batch_size if training else None
    length, places = section.max_sequence_length, section.max_predictions_per_seq
    types = [tf.int32, tf.int32, tf.int32, tf.int32, tf.float32]
    shapes = [[batch, length]] * 2 + [[batch, places]] * 3
    arrays = tf.numpy_function(function, inputs, types)
    return _named([tf.ensure_shape(a, shape) for a, shape in zip(arrays, shapes)], section)


def _named(arrays, section):
    features = finish_features(dict(zip(DRAWN, arrays)), section)
    return features, features["masked_lm_ids"]


def _blank(section):
    ids = tf.zeros([section.batch_size, section.max_sequence_length], tf.int32)
    places = tf.zeros([section.batch_size, section.max_predictions_per_seq], tf.int32)
    return _named([ids, ids, places, places, tf.cast(places, tf.float32)], section)


PROCESSORS = {
    cls.__name__: cls
    for cls in (
        BertTfRecordsProcessor,
        BertMlmOnlyTfRecordsStaticMaskProcessor,
        BertMlmOnlyTfRecordsDynamicMaskProcessor,
        BertTextDataProcessor,
    )
}
INPUTS = InputFunctions(Params, PROCESSORS)
