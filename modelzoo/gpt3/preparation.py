"""Writes the records of GPT from documents, TFRecords or HDF5.

S is the sequence length. A record's inputs are S tokens, and its labels are the inputs shifted by
one token. The next record starts where the labels ended (or `overlap_size` tokens earlier), so that
every token but the first is predicted once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.errors import ConfigError
from modelzoo.common.data.hdf5_files import Hdf5Writer
from modelzoo.common.data.preparation import input_files, pipeline, records, text_cleaning
from modelzoo.common.files import text_sources
from modelzoo.common.tokenizers import tokenizers

UNIT_BYTES = 64 << 20  # input of one unit of work; a stopped run resumes at the next unit
PIECE_CHARACTERS = 1 << 20  # text that is tokenized at a time
MIN_LENGTH = 2  # tokens of a record that is shortened by short_seq_prob
FILE_FORMATS = {"tfrecords": records.RecordWriter, "HDF5": Hdf5Writer}


@dataclass(frozen=True)
class PreparationSettings:
    """How records are made.

    `eos_id` None is the tokenizer's own. `pad_id` None is its padding token, or else `eos_id`.
    `short_seq_prob` is the fraction of records shortened to a random length.
    `ftfy_normalizer` is a Unicode normal form, or ``none``.
    """

    tokenizer_type: str
    vocab_file: Optional[str] = None
    encoder_file: Optional[str] = None
    max_seq_length: int = 2048
    short_seq_prob: float = 0.0
    overlap_size: int = 0
    eos_id: Optional[int] = None
    pad_id: Optional[int] = None
    text_key: str = text_sources.TEXT_KEY
    ftfy: bool = False
    ftfy_normalizer: str = "NFC"
    wikitext_detokenize: bool = False
    file_format: str = "tfrecords"
    files_per_record: int = 50_000
    write_remainder: bool = False
    output_name: str = "examples"
    seed: int = 0


class Packer:
    """Packs a stream of tokens into records of S tokens."""

    def __init__(self, length, pad_id, overlap=0, short_seq_prob=0.0, seed=0):
        self._length = length
        self._pad_id = pad_id
        self._overlap = overlap
        self._short_seq_prob = short_seq_prob
        self._random = np.random.default_rng(seed)
        self._parts = []
        self._waiting = 0
        self._wanted = self._draw_length()

    def _draw_length(self):
        if self._short_seq_prob and self._random.random() < self._short_seq_prob:
            return int(self._random.integers(MIN_LENGTH, self._length))
        return self._length

    def add(self, tokens):
        """Adds tokens and yields the records that are complete."""
        self._parts.append(tokens)
        self._waiting += len(tokens)
        if self._waiting <= self._wanted:
            return
        row = np.concatenate(self._parts)
        start = 0
        while len(row) - start > self._wanted:
            yield self._record(row[start : start + self._wanted + 1])
            start += self._wanted - min(self._overlap, self._wanted - 1)
            self._wanted = self._draw_length()
        self._parts, self._waiting = [row[start:]], len(row) - start

    def remainder(self):
        """Yields the last record, padded and masked, if a token has not been predicted."""
        row = np.concatenate(self._parts) if self._parts else np.zeros(0, np.int32)
        if len(row) > 1:
            yield self._record(row)

    def _record(self, row):
        real = len(row) - 1
        padded = np.full(self._length + 1, self._pad_id, np.int32)
        padded[: len(row)] = row
        labels = padded[1:].copy()
        ids = padded[:-1].copy()
        ids[real:] = self._pad_id
        mask = (np.arange(self._length) < real).astype(np.int32)
        return {"input_ids": ids, "input_mask": mask, "labels": labels}


@functools.lru_cache(maxsize=1)
def _tokenizer(settings):
    """Loads the tokenizer, once a process."""
    return tokenizers.load_tokenizer(
        settings.tokenizer_type, settings.vocab_file, settings.encoder_file, settings.eos_id
    )


def _pad_id(settings, tokenizer):
    choices = (settings.pad_id, tokenizer.pad_id, tokenizer.eos_id)
    return next(number for number in choices if number is not None)


def encode_documents(parts, settings, on_done=lambda size: None):
    """Yields the tokens of documents, with an end-of-text token after each.

    Args:
        on_done: called with the bytes of input whose tokens were taken since its last call.

    Yields:
        Tokens [n] int32, whether a document ends with them, and the bytes of their text.
    """
    tokenizer = _tokenizer(settings)
    byte_level = isinstance(tokenizer, tokenizers.ByteLevelTokenizer)
    progress = pipeline.InputProgress(on_done)
    for path, start, end in parts:
        key = settings.text_key
        for text in text_sources.read_documents(path, key, start, end, progress.read):
            text = text_cleaning.clean(
                text,
                settings.ftfy_normalizer if settings.ftfy else None,
                settings.wikitext_detokenize,
            )
            limit, left = PIECE_CHARACTERS if byte_level else len(text), len(text)
            for piece in tokenizers.split_text(text, limit):
                yield tokenizer.encode(piece), False, len(piece.encode("utf-8"))
                progress.finish(len(piece) / left)
                left -= len(piece)
            yield np.array([tokenizer.eos_id], np.int32), True, 0
        progress.finish()


def write_unit(parts, output, settings):
    """Packs the documents of one unit into records and writes them.

    Returns the counts of documents, bytes of text and tokens.
    """
    writer = output.writer(
        settings.output_name, settings.files_per_record, FILE_FORMATS[settings.file_format]
    )
    packer = Packer(
        settings.max_seq_length,
        _pad_id(settings, _tokenizer(settings)),
        settings.overlap_size,
        settings.short_seq_prob,
        [settings.seed, output.index],
    )
    counts = {"documents": 0, "text_bytes": 0, "tokens": 0}
    for tokens, ended, size in encode_documents(parts, settings, output.advance):
        for record in packer.add(tokens):
            writer.write(record)
        counts["documents"] += ended
        counts["text_bytes"] += size
        counts["tokens"] += len(tokens)
    if settings.write_remainder:
        for record in packer.remainder():
            writer.write(record)
    return counts


def prepare(inputs, output_dir, settings, processes=1, on_progress=lambda size: None):
    """Writes the records of `inputs` to `output_dir`, going on where an earlier run stopped.

    Returns the manifest: settings, vocab_size, counts, files with checksums.
    """
    if not 0 <= settings.overlap_size < settings.max_seq_length:
        raise ConfigError(
            f"overlap_size: must be at least 0 and less than max_seq_length "
            f"({settings.max_seq_length}). Received: {settings.overlap_size}. Lower it."
        )
    if settings.short_seq_prob and settings.max_seq_length <= MIN_LENGTH:
        raise ConfigError(
            f"max_seq_length: must be above {MIN_LENGTH} to shorten records. Received: "
            f"{settings.max_seq_length}, with short_seq_prob {settings.short_seq_prob}. Raise it, "
            "or remove short_seq_prob."
        )
    records.check_name("output_name", settings.output_name)
    files = input_files.find_inputs(inputs, text_sources.SUFFIXES)
    tokenizer = _tokenizer(settings)
    tokenizers.require_tokens(tokenizer, "eos")
    for key in ("eos_id", "pad_id"):
        tokenizers.check_number(key, getattr(settings, key), tokenizer.vocab_size)
    facts = tokenizer.facts
    return pipeline.prepare_files(
        files, UNIT_BYTES, write_unit, output_dir, settings, processes, on_progress, facts
    )
