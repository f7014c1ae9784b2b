"""Writes the TFRecords of BERT pre-training from documents, with masks or to be masked later.

S is the sequence length, P the number of masked positions of a record.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.bert.masking import MaskSettings, draw_masks
from modelzoo.bert.next_sentence import sentence_pairs, truncate_pair
from modelzoo.common.data.preparation import (
    documents,
    input_files,
    pipeline,
    records,
    text_cleaning,
)
from modelzoo.common.files import text_sources
from modelzoo.common.files.text_lines import numbered_lines
from modelzoo.common.fine_tuning import sentences
from modelzoo.common.tokenizers import tokenizers

UNIT_BYTES = 8 << 20  # input of one unit of work; its records are shuffled together
BATCH_SENTENCES = 1000  # that are tokenized between two reports of progress
ROUND_COST = 1.5  # time of one round over a document, of that to read and tokenize it
MIN_DOCUMENTS = 4  # from which random second segments are drawn, if the input has as many
MIN_PAIR = 2  # tokens of a pair; a single sequence has at least one


@dataclass(frozen=True)
class PreparationSettings:
    """How records are made; the names are the options of ``cerebras-tf prepare bert``.

    `dupe_factor` None is 10, or 1 with `disable_masking`.
    """

    vocab_file: str
    do_lower_case: bool = False
    mlm_only: bool = False
    disable_masking: bool = False
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    mask_whole_word: bool = False
    dupe_factor: Optional[int] = None
    short_seq_prob: float = 0.1
    min_short_seq_length: Optional[int] = None
    allow_cross_document_examples: bool = False
    document_separator_token: str = "[SEP]"
    overlap_size: int = 0
    multiple_docs_in_single_file: bool = False
    multiple_docs_separator: str = ""
    single_sentence_per_line: bool = False
    spacy_model: Optional[str] = None
    wikitext_detokenize: bool = False
    text_key: str = text_sources.TEXT_KEY
    files_per_record: int = 50_000
    name: str = "examples"
    seed: int = 0

    @property
    def rounds(self):
        """Number of passes over the documents, each with other masks and pairs."""
        return self.dupe_factor or (1 if self.disable_masking else 10)

    def check(self):
        """Raises a ConfigError for options that exclude each other."""
        records.check_name("name", self.name)
        limit = self.max_seq_length - 2
        if self.disable_masking and not self.mlm_only:
            raise ConfigError(
                "disable_masking: must be used with mlm_only, because pairs of sentences are "
                "stored with masks. Received: only disable_masking. Add --mlm_only."
            )
        if limit < MIN_PAIR + 1 or not 0 <= self.overlap_size < limit:
            raise ConfigError(
                f"max_seq_length: must be at least {MIN_PAIR + 3}, and overlap_size from 0 "
                f"to max_seq_length - 3. Received: {self.max_seq_length}, {self.overlap_size}. "
                "Correct them."
            )
        if self.max_predictions_per_seq > self.max_seq_length:
            raise ConfigError(
                f"max_predictions_per_seq: must not exceed max_seq_length ({self.max_seq_length}). "
                f"Received: {self.max_predictions_per_seq}. Lower it."
            )
        least = self.min_short_seq_length or MIN_PAIR
        if not MIN_PAIR <= least < limit:
            raise ConfigError(
                f"min_short_seq_length: must be from {MIN_PAIR} to max_seq_length - 3. "
                f"Received: {least}. Correct it."
            )


@functools.lru_cache(maxsize=1)
def _tokenizer(settings):
    """Loads the tokenizer, once a process."""
    loaded = tokenizers.load_tokenizer(
        "BertTokenizer", settings.vocab_file, do_lower_case=settings.do_lower_case
    )
    tokenizers.require_tokens(loaded, "pad", "unk", "cls", "sep", "mask")
    return loaded


def read_documents(parts, settings, on_done=lambda size: None):
    """Yields documents as lists of sentences of tokens.

    Args:
        parts: (path, first byte, one past the last byte), see documents.plan_units.
        on_done: called with the bytes of input whose documents were taken since its last call.

    Yields:
        Lists of [n] int32, n >= 1, never empty.
    """
    tokenizer = _tokenizer(settings)
    split = sentences.split_sentences
    if settings.single_sentence_per_line:
        split = sentences.split_lines
    elif settings.spacy_model:
        split = sentences.spacy_splitter(settings.spacy_model)
    progress = pipeline.InputProgress(on_done)
    for path, start, end in parts:
        key = settings.text_key
        for text in text_sources.read_documents(path, key, start, end, progress.read):
            left = len(text)
            if settings.wikitext_detokenize:
                text = text_cleaning.detokenize_wikitext(text).replace("<unk>", "[UNK]")
            several = settings.multiple_docs_in_single_file
            separator = settings.multiple_docs_separator
            for document in sentences.split_documents(text, separator) if several else [text]:
                tokens = []
                found = list(split(document))
                for first in range(0, len(found), BATCH_SENTENCES):
                    batch = found[first : first + BATCH_SENTENCES]
                    tokens += [ids for ids in tokenizer.encode_batch(batch) if len(ids)]
                    size = sum(map(len, batch))
                    progress.finish(size / max(left, 1))
                    left -= size
                if tokens:
                    yield tokens
        progress.finish()


class RecordMaker:
    """Makes records of tokens."""

    def __init__(self, settings, generator):
        self._settings = settings
        self.generator = generator
        self._tokenizer = tokenizer = _tokenizer(settings)
        self._words = tokenizer.tokens(range(tokenizer.vocab_size))
        # An unused id does not continue a word.
        self._continues = np.array([(word or "").startswith("##") for word in self._words])
        self._masks = MaskSettings(
            tokenizer.mask_id,
            (0, tokenizer.vocab_size),
            settings.masked_lm_prob,
            settings.max_predictions_per_seq,
        )

    def draw_length(self, limit):
        """Returns `limit`, or with probability `short_seq_prob` a smaller number."""
        settings = self._settings
        if self.generator.random() < settings.short_seq_prob:
            least = settings.min_short_seq_length or MIN_PAIR
            return int(self.generator.integers(least, limit + 1))
        return limit

    def pair(self, first, second, is_random):
        """Returns the features of two segments; see data.BertTfRecordsProcessor."""
        limit = self._settings.max_seq_length - 3
        first, second = truncate_pair(first, second, limit, self.generator)
        cls, sep = [self._tokenizer.cls_id], [self._tokenizer.sep_id]
        ids = np.concatenate([cls, first, sep, second, sep]).astype(np.int32)
        inner = np.ones(len(ids), bool)
        inner[[0, len(first) + 1, -1]] = False
        segments = np.zeros(self._settings.max_seq_length, np.int32)
        segments[len(first) + 2 : len(ids)] = 1
        return {
            **self._masked(ids, inner),
            "segment_ids": segments,
            "next_sentence_labels": np.array([is_random], np.int32),
        }

    def single(self, tokens):
        """Returns the features of one sequence; see data.BertMlmOnlyTfRecordsStaticMask..."""
        ids = self._closed(tokens)
        inner = np.ones(len(ids), bool)
        inner[[0, -1]] = False
        separator = self._tokenizer.token_id(self._settings.document_separator_token)
        return self._masked(ids, inner & (ids != separator))

    def words(self, tokens):
        """Returns the tokens of one sequence between [CLS] and [SEP], a list of bytes."""
        return [self._words[number].encode() for number in self._closed(tokens)]

    def _closed(self, tokens):
        cls, sep = [self._tokenizer.cls_id], [self._tokenizer.sep_id]
        return np.concatenate([cls, tokens, sep]).astype(np.int32)

    def _masked(self, ids, inner):
        length, count = self._settings.max_seq_length, self._settings.max_predictions_per_seq
        whole = self._continues[ids] if self._settings.mask_whole_word else None
        masked, chosen, originals = draw_masks(ids, inner, self._masks, self.generator, whole)
        weights = np.zeros(count, np.float32)
        weights[: len(chosen)] = 1.0
        mask = np.zeros(length, np.int32)
        mask[: len(ids)] = 1
        return {
            "input_ids": _padded(masked, length, self._tokenizer.pad_id),
            "input_mask": mask,
            "masked_lm_positions": _padded(chosen, count, 0),
            "masked_lm_ids": _padded(originals, count, 0),
            "masked_lm_weights": weights,
        }


def _padded(values, length, pad):
    row = np.full(length, pad, np.int32)
    row[: len(values)] = values
    return row


def sequences(texts, settings, maker, separator_id):
    """Splits documents into sequences of S - 2 tokens, for masked words without pairs.

    With `allow_cross_document_examples` the next document continues a sequence after a separator.

    Yields:
        [n] integers, 1 <= n <= S - 2.
    """
    if settings.allow_cross_document_examples and texts:
        parts = [part for text in texts for part in (text, [separator_id])]
        texts = [np.concatenate(parts[:-1])]
    for text in texts:
        start = 0
        while start < len(text):
            length = maker.draw_length(settings.max_seq_length - 2)
            yield text[start : start + length]
            if start + length >= len(text):
                break
            start += max(1, length - settings.overlap_size)


def write_unit(parts, output, settings, units):
    """Makes the records of one unit.

    Returns the counts of documents, sentences and tokens, of one round.
    """
    later = pipeline.InputProgress(output.advance)
    share = 1 / (1 + ROUND_COST * settings.rounds)

    def tokenized(size):
        output.advance(int(size * share))
        later.read(size - int(size * share))

    found = list(read_documents(parts, settings, tokenized))
    others = [] if settings.mlm_only else other_documents(found, output.index, settings, units)
    generator = np.random.default_rng([settings.seed, output.index])
    maker = RecordMaker(settings, generator)
    writer = output.writer(settings.name, settings.files_per_record)
    for left in range(settings.rounds, 0, -1):
        for record in _shuffled(list(_one_round(found, others, settings, maker)), generator):
            if settings.disable_masking:
                writer.write_sequence({"tokens": [[word] for word in record]})
            else:
                writer.write(record)
        later.finish(1 / left)
    tokens = sum(len(sentence) for document in found for sentence in document)
    return {"documents": len(found), "sentences": sum(map(len, found)), "tokens": tokens}


def other_documents(found, index, settings, units):
    """Reads documents of other units for random second segments, if a unit has too few.

    Units are read in an order that depends on the seed, until there are MIN_DOCUMENTS.

    Returns:
        A list of documents, see `read_documents`.
    """
    if not found or len(found) >= MIN_DOCUMENTS:
        return []
    others: list = []
    order = np.random.default_rng([settings.seed, index, len(units)]).permutation(len(units))
    for unit in order[order != index]:
        others += read_documents(units[unit], settings)
        if len(found) + len(others) >= MIN_DOCUMENTS:
            return others
    if len(found) + len(others) == 1:
        raise DataError(
            f"{units[index][0][0]}: the input must have at least two documents, for random next "
            "sentences. Received: one. Use --multiple_docs_in_single_file if blank lines separate "
            "documents, more files, or --mlm_only."
        )
    return others


def _one_round(found, others, settings, maker):
    if not settings.mlm_only:
        yield from _pairs(found, others, settings, maker)
        return
    name = settings.document_separator_token
    separator_id = _tokenizer(settings).token_id(name)
    if separator_id is None:
        raise ConfigError(
            f"document_separator_token: must be in the vocabulary. Received: {name!r}. Use "
            "another, such as [SEP]."
        )
    texts = [np.concatenate(document) for document in found]
    for sequence in sequences(texts, settings, maker, separator_id):
        yield maker.words(sequence) if settings.disable_masking else maker.single(sequence)


def _pairs(found, others, settings, maker):
    """Makes the pairs of the documents `found`; random second segments are also from `others`."""
    limit = settings.max_seq_length - 3
    known = found + others
    for index in range(len(found)):
        for pair in sentence_pairs(known, index, lambda: maker.draw_length(limit), maker.generator):
            yield maker.pair(*pair)


def _shuffled(items, generator):
    return (items[index] for index in generator.permutation(len(items)))


def prepare(inputs, output_dir, settings, processes=1, on_progress=lambda size: None):
    """Writes the records of `inputs` to `output_dir`, resuming a stopped run.

    Returns the manifest: settings, vocab_size, counts, files with checksums.
    """
    settings.check()
    files = input_files.find_inputs(inputs, text_sources.SUFFIXES)
    tokenizer = _tokenizer(settings)
    units = documents.plan_units(files, UNIT_BYTES)
    return pipeline.prepare(
        units,
        functools.partial(write_unit, settings=settings, units=units),
        output_dir,
        documents.describe_settings(settings, files),
        processes,
        on_progress,
        tokenizer.facts,
    )


def listed_inputs(metadata_files, prefix="", log=lambda line: None):
    """Reads the paths of documents from files with one path in each line.

    Returns:
        The paths in order.
    """
    paths = []
    for listing in input_files.find_inputs(metadata_files, (".txt",), log):
        for where, line in numbered_lines(listing):
            path = os.path.join(prefix, line.strip())
            if not os.path.isfile(path):
                raise DataError(
                    f"{where}: must be the path of a file. Received: {path!r}. Correct the line, "
                    "or set the folder with --input_files_prefix."
                )
            paths.append(path)
    return paths
