"""The data processors of the encoder-decoder.

Shapes: B batch, S source, T target with its start or end token. Every processor yields features

- ``encoder_input_ids`` [B, S] int32; ``encoder_input_length`` [B] int32; ``encoder_mask`` [B, S]
  int32, 1 for padding,
- ``decoder_input_ids`` [B, T], a start token and the target; ``decoder_input_length``;
  ``decoder_mask``,
- ``loss_scale`` [B, T] float32, B / the number of target tokens of the batch,
- ``pair_index`` [B] int32, the number of the pair, -1 for a row of padding,

and labels [B, T] int32, the target and an end token.
"""

import os
import re
import zlib

import numpy as np
import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from modelzoo.common.data import record_files, tf_records
from modelzoo.common.data.batches import numbered_batches
from modelzoo.common.data.functions import InputFunctions
from modelzoo.common.data.prepared import check_prepared
from modelzoo.common.data.text_files import find_text_files
from modelzoo.common.files import text_lines, text_sources
from modelzoo.transformer.pairs import FEATURES, PairBatches, Pairs
from modelzoo.transformer.params import Params
from modelzoo.transformer.vocabulary import JOINT, ByteVocabulary, load_vocabularies

WORD = re.compile(rb"[a-z]+")
WORDS_PER_NAME = 2
SPLIT_BUCKETS = 10_000
RECORD_FEATURES = ("source_ids", "target_ids")
RECORDS_AT_A_TIME = 4096
_RAISE = "Raise src_max_sequence_length and tgt_max_sequence_length, or add text."
VECTORS = ("encoder_input_length", "decoder_input_length", "pair_index")


class PairProcessor:
    """Base of the processors: sentence pairs in memory, batched by length."""

    def __init__(self, section):
        self.section = section

    def source(self):
        """Returns the names of the files, for errors."""
        found = (getattr(self.section, key, None) for key in ("src_data_dir", "tgt_data_dir"))
        given = [*filter(None, found), *filter(None, [getattr(self.section, "data_dir", None)])]
        named = [path for each in given for path in as_list(each)]
        return " and ".join(named) or self.section.data_processor

    def tokens(self, training):
        """Returns the tokens of sources and targets of a split, two lists of [n] int32."""
        raise NotImplementedError

    def pairs(self, training, cut=False):
        """Reads the pairs of a split, and logs how many were dropped or truncated."""
        section = self.section
        sources, targets = self.tokens(training)
        if training and section.use_multiple_workers:
            workers, index = tf_records.worker_position()
            sources, targets = sources[index::workers], targets[index::workers]
        longest = (section.src_max_sequence_length, section.tgt_max_sequence_length)
        if section.source_reverse:
            sources = [row[::-1] for row in sources]
        pairs = Pairs(sources, targets, *longest, cut)
        if not len(pairs):
            empty = sum(not len(row) or not len(other) for row, other in zip(sources, targets))
            advice = "Add text." if empty == len(sources) else _RAISE
            raise DataError(
                f"{self.source()}: must contain pairs of at most {longest[0]} and {longest[1] - 1} "
                f"tokens. Received: {len(sources)} pairs, of which {empty} are empty and "
                f"{len(sources) - empty} longer. {advice}"
            )
        if pairs.dropped:
            tf.logging.info(
                "dropped %d of %d pairs: empty, or longer than %d and %d tokens",
                pairs.dropped,
                len(sources),
                longest[0],
                longest[1] - 1,
            )
        if pairs.cut:
            tf.logging.warning("truncated %d sources to %d tokens", pairs.cut, longest[0])
        return pairs

    def batches(self, training, predicting=False):
        """Returns the batches of a split, a PairBatches.

        In training, pairs that fill no batch are skipped. Otherwise the last batch is padded with
        empty rows. With `predicting`, sentences that are too long are truncated, not dropped.
        """
        section = self.section
        seed = (section.shuffle_seed or 0) if section.shuffle else None
        return PairBatches(
            self.pairs(training, cut=predicting),
            section.bucket_lengths,
            section.batch_size,
            seed,
            keep_all=not training,
        )

    def create_dataset(self, training, skip, predicting=False):
        """Returns the dataset of `batches`, without the first `skip`."""
        batches = self.batches(training, predicting)
        types = [tf.float32 if name == "loss_scale" else tf.int32 for name in FEATURES]

        def example(number):
            tensors = tf.numpy_function(batches.batch, [number], [*types, tf.int32])
            return self._shaped(dict(zip(FEATURES, tensors)), tensors[-1])

        count = batches.batches_per_epoch
        return numbered_batches(example, skip, count, self.section.repeat, training)

    def blank(self):
        """Returns a batch of zeros, of the longest bucket."""
        size, length = self.section.batch_size, self.section.bucket_lengths[-1]
        features = {
            name: tf.zeros([size] if name in VECTORS else [size, length], tf.int32)
            for name in FEATURES
        }
        features["loss_scale"] = tf.zeros([size, length], tf.float32)
        return features, tf.zeros([size, length], tf.int32)

    def _shaped(self, features, labels):
        """Sets the static shapes. With several buckets the length is unknown."""
        size, lengths = self.section.batch_size, self.section.bucket_lengths
        length = lengths[0] if len(lengths) == 1 else None
        for name, tensor in features.items():
            tensor.set_shape([size] if name in VECTORS else [size, length])
        labels.set_shape([size, length])
        return features, labels


class TransformerDynamicDataProcessor(PairProcessor):
    """Reads two text files, plain or tokenized."""

    def tokens(self, training):
        """Returns the tokens of both texts, empty targets if the section has none."""
        sources, targets = self.sentences()
        source, target = load_vocabularies(self.section)
        return source.encode_batch(sources), target.encode_batch(targets or [""] * len(sources))

    def sentences(self):
        """Returns the lines of both texts, None for targets if the section has none."""
        sources, targets = self.section.src_data_dir, self.section.tgt_data_dir
        if targets is None:
            return read_sentences(as_list(sources)), None
        return read_pairs(sources, targets)

    def references(self):
        """Returns sources and targets with subwords joined, None for targets that are not given."""
        sources, targets = self.sentences()
        if self.section.tokenizer_file:
            return sources, targets
        whole = [_joined(sentences) for sentences in (sources, targets or [])]
        return whole[0], targets and whole[1]

    @property
    def bleu_tokenizer(self):
        """The tokenizer of sacrebleu."""
        return "13a" if self.section.tokenizer_file else "none"

    def target_vocabulary(self):
        """Returns the vocabulary of the target."""
        return load_vocabularies(self.section)[1]


class TransformerTfRecordsProcessor(PairProcessor):
    """Reads TFRecords with int64 features source_ids and target_ids of any length."""

    def tokens(self, training):
        """Reads all records into memory."""
        files = record_files.find_record_files(self.section.data_dir)
        sizes = {key: getattr(self.section, key) for key in ("src_vocab_size", "tgt_vocab_size")}
        check_prepared(as_list(self.section.data_dir), sizes)
        with tf.Graph().as_default(), tf.Session() as session:
            return read_records(files, session, dict(zip(RECORD_FEATURES, sizes.values())))


class IdentifierDataProcessor(PairProcessor):
    """Names of two words in snake_case and in CamelCase, byte by byte."""

    bleu_tokenizer = "char"

    def tokens(self, training):
        """Returns the bytes of the names of a split."""
        vocabulary = ByteVocabulary()
        names, answers = identifier_pairs(self.section.eval_fraction, training)
        return vocabulary.encode_batch(names), vocabulary.encode_batch(answers)

    def references(self):
        """Returns the names kept for evaluation, in both spellings."""
        return identifier_pairs(self.section.eval_fraction, training=False)

    def target_vocabulary(self):
        """Returns the vocabulary of the target."""
        return ByteVocabulary()


def read_records(files, session, vocab_sizes):
    """Reads the tokens of all records; returns sources and targets, two lists of [n] int32."""
    for path in files:
        record_files.check_frames(path)
    layout = {name: tf.io.RaggedFeature(tf.int64) for name in RECORD_FEATURES}
    dataset = tf.data.TFRecordDataset(files).batch(RECORDS_AT_A_TIME)
    dataset = dataset.map(lambda records: tf.io.parse_example(records, layout))
    batch = tf.data.make_one_shot_iterator(dataset).get_next()
    read: dict[str, list[np.ndarray]] = {name: [] for name in RECORD_FEATURES}
    while True:
        try:
            values = session.run(batch)
        except tf.errors.OutOfRangeError:
            return tuple(read[name] for name in RECORD_FEATURES)
        except tf.errors.InvalidArgumentError as error:
            raise DataError(
                f"{files[0]}: must contain tf.train.Example with {' and '.join(RECORD_FEATURES)}. "
                f"Received: {error.message}. Write them with `cerebras-tf prepare translation`."
            ) from error
        for name, rows in values.items():
            ids, splits = rows.values, rows.row_splits
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_sizes[name]:
                raise DataError(
                    f"{os.path.dirname(files[0])}: {name} must contain tokens from 0 to "
                    f"{vocab_sizes[name] - 1}. Received: {ids.min()} to {ids.max()}. Use records "
                    "that were prepared for this model."
                )
            read[name] += np.split(ids.astype(np.int32), splits[1:-1])


def _joined(sentences):
    return [(sentence + " ").replace(JOINT, "").strip() for sentence in sentences]


def read_sentences(paths):
    """Returns the lines of text files, concatenated; see text_lines.read_lines."""
    lines = [line for path in paths for line in text_lines.read_lines(path)]
    for path in paths:
        text_sources.require_text(path)
    return lines


def read_pairs(sources, targets):
    """Returns the lines of two texts, each a file or a list of files."""
    sources, targets = as_list(sources), as_list(targets)
    source_lines, target_lines = read_sentences(sources), read_sentences(targets)
    if len(source_lines) != len(target_lines):
        raise DataError(
            f"{', '.join(targets)}: must have as many lines as {', '.join(sources)}. Received: "
            f"{len(target_lines)} and {len(source_lines)}. Use two files with the same number of "
            "lines."
        )
    return source_lines, target_lines


def as_list(paths):
    """Returns a list of paths, also of one path."""
    return [paths] if isinstance(paths, str) else list(paths)


def identifier_pairs(eval_fraction, training):
    """Returns the names of one split, the first two words of the lines of the bundled text.

    Returns:
        Two sorted lists of str: ``snake_case`` and ``CamelCase``.
    """
    found: set[bytes] = set()
    for _, path in find_text_files(None, []):
        for line in text_lines.read_lines(path):
            words = WORD.findall(line.lower().replace("'", "").encode())[:WORDS_PER_NAME]
            if len(words) == WORDS_PER_NAME:
                found.add(b"_".join(words))
    limit = eval_fraction * SPLIT_BUCKETS
    names = [
        name.decode("ascii")
        for name in sorted(found)
        if (zlib.crc32(name) % SPLIT_BUCKETS >= limit) == training
    ]
    return names, ["".join(part.capitalize() for part in name.split("_")) for name in names]


PROCESSORS = {
    cls.__name__: cls
    for cls in (
        TransformerDynamicDataProcessor,
        TransformerTfRecordsProcessor,
        IdentifierDataProcessor,
    )
}
INPUTS = InputFunctions(Params, PROCESSORS)
