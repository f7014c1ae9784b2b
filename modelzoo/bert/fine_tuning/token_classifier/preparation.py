"""Writes the TFRecords that NerDataProcessor reads, and label2id.json, from tagged sentences.

S is the sequence length. A sentence with more tokens than S is split into several records between
words, so that no word is lost.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation import documents, pipeline, records
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.fine_tuning.encoding import Encoder
from modelzoo.common.fine_tuning.tag_labels import (
    BEGIN,
    END,
    LATER_PIECE,
    PAD,
    label_names,
    read_sentences,
)

SPLITS = {"train": ("train.tsv",), "dev": ("devel.tsv", "dev.tsv"), "test": ("test.tsv",)}
LABEL_FILE = "label2id.json"
SENTENCES_PER_UNIT = 2_000
MIN_TOKENS = 3  # of a record: [CLS], a word and [SEP]
NO_WORD = -1  # in word_ids, for a token that does not begin a word


@dataclass(frozen=True)
class Settings:
    """How records are made; the names are those of the command line."""

    vocab_file: str
    do_lower_case: bool = False
    max_seq_length: int = 128


def find_splits(data_dir):
    """Finds the files of a data set.

    Returns:
        Path by split, a key of SPLITS.
    """
    found = {}
    for split, names in SPLITS.items():
        paths = [os.path.join(data_dir, name) for name in names]
        present = [path for path in paths if os.path.isfile(path)]
        if present:
            found[split] = present[0]
    if not found:
        wanted = ", ".join(name for group in SPLITS.values() for name in group)
        raise DataError(
            f"{data_dir}: must be a folder with some of {wanted}. Received: none of them. "
            f"{advice_on_path(data_dir, 'Check --data_dir.')}"
        )
    return found


def prepare(data_dir, split, output_dir, settings, processes=1, on_progress=lambda amount: None):
    """Writes the records of a split to ``output_dir/split``, and ``output_dir/label2id.json``.

    The labels are those of all files of `data_dir`, whichever split is made.

    Returns:
        The manifest of pipeline.prepare.
    """
    if settings.max_seq_length < MIN_TOKENS:
        raise ConfigError(
            f"max_seq_length: must be at least {MIN_TOKENS}, for [CLS], a word and [SEP]. "
            f"Received: {settings.max_seq_length}. Raise it."
        )
    files = find_splits(data_dir)
    if split not in files:
        raise DataError(
            f"{data_dir}: must have {' or '.join(SPLITS[split])}. Received: "
            f"{', '.join(files.values())}. Check --data_dir."
        )
    sentences = {name: read_sentences(path) for name, path in files.items()}
    names = label_names(sentence for part in sentences.values() for sentence in part)
    numbers = {name: number for number, name in enumerate(names)}
    records.check_same(Path(output_dir) / LABEL_FILE, records.json_text(numbers))
    path = files[split]
    described = documents.describe_settings(settings, [path], labels=names)
    starts = range(0, len(sentences[split]), SENTENCES_PER_UNIT)
    manifest = pipeline.prepare(
        [(path, start, start + SENTENCES_PER_UNIT) for start in starts],
        functools.partial(write_unit, settings=settings, names=names),
        os.path.join(output_dir, split),
        described,
        processes,
        on_progress,
        SentenceEncoder(settings, names).vocabulary,
    )
    records.write_json(Path(output_dir) / LABEL_FILE, numbers)
    return manifest


def write_unit(unit, output, settings, names):
    """Writes the records of some sentences of a file; see pipeline.prepare."""
    path, start, stop = unit
    encoder = SentenceEncoder(settings, names)
    writer = output.writer()
    counts = {"sentences": 0, "words": 0}
    for index, sentence in enumerate(read_sentences(path)[start:stop], start=start):
        for record in encoder.records(sentence, index):
            writer.write(record)
        counts["sentences"] += 1
        counts["words"] += len(sentence.words)
        output.advance(1)
    return counts


@dataclass(frozen=True)
class Piece:
    """A token: its id, its label, and the index of the word that it begins or NO_WORD."""

    id: int
    label: str
    word: int = NO_WORD


class SentenceEncoder(Encoder):
    """Encodes tagged sentences."""

    def __init__(self, settings, names):
        super().__init__(settings.vocab_file, settings.do_lower_case, "unk")
        self._length = settings.max_seq_length
        self._number = {name: number for number, name in enumerate(names)}

    def records(self, sentence, index):
        """Yields the records of a sentence.

        Yields:
            Dictionaries of input_ids, input_mask (1 for a token), segment_ids, label_ids and
            word_ids [S], and sentence_ids [1].
        """
        limit = self._length - 2
        pieces: list[Piece] = []
        encoded = self.tokenizer.encode_batch(sentence.words)
        for place, (ids, tag) in enumerate(zip(encoded, sentence.tags)):
            first, *later = ids[:limit] if len(ids) else [self.tokenizer.unk_id]
            if len(pieces) + 1 + len(later) > limit:
                yield self._record(pieces, index)
                pieces = []
            pieces.append(Piece(int(first), tag, place))
            pieces += [Piece(int(id), LATER_PIECE) for id in later]
        yield self._record(pieces, index)

    def _record(self, pieces, index):
        tokenizer = self.tokenizer
        rows = [Piece(tokenizer.cls_id, BEGIN), *pieces, Piece(tokenizer.sep_id, END)]
        mask = (np.arange(self._length) < len(rows)).astype(np.int64)
        rows += [Piece(self.pad_id, PAD)] * (self._length - len(rows))
        return {
            "input_ids": np.array([piece.id for piece in rows]),
            "input_mask": mask,
            "segment_ids": np.zeros(self._length, np.int64),
            "label_ids": np.array([self._number[piece.label] for piece in rows]),
            "word_ids": np.array([piece.word for piece in rows]),
            "sentence_ids": np.array([index]),
        }
