"""Compares folders of records with what reads them, by the manifest.json of their preparation.

Records are not read here: who reads them hands in their tokens, and checks their shapes.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import tensorflow.compat.v1 as tf

from cerebras_tf.errors import DataError
from modelzoo.common.preparation.records import MANIFEST
from modelzoo.common.tokenizers import vocabulary_facts, word_pieces

LENGTH_KEYS = ("max_seq_length", "max_sequence_length")
# A table of embeddings may have rows that no token uses, to be of a round size: those of GPT-J and
# GPT-NeoX have 143 and 155. More than that, or than an eighth, is another vocabulary.
MOST_UNUSED = 1024
UNUSED_SHARE = 8


@dataclass(frozen=True)
class Facts:
    """What a manifest tells of records, each None where it does not.

    `made_with` names the file (or files) of the vocabulary whose tokens and numbers have the digest
    `vocabulary_sha256`. `labels` are those of tagged sentences, in the order of their numbers.
    `tokens_and_bytes` are how many tokens stand for how many bytes of text.
    """

    vocab_size: Optional[int]
    length: Optional[int]
    vocabulary_sha256: Optional[str]
    made_with: Optional[str]
    labels: Optional[list]
    tokens_and_bytes: Optional[tuple[int, int]] = None


def check_prepared(folders, vocab_sizes, length=None, vocab_file=None):
    """Checks that records are of the model's vocabulary and sequence length.

    A folder without a manifest of this package was made by hand: a line of the log says that
    nothing tells its vocabulary. What `check_tokens` sees of it is checked all the same.

    Args:
        folders: paths.
        vocab_sizes: numbers of tokens that the model has, by the key that gives them; None for one
            that is not known.
        length: the input section's max_sequence_length; None where records have no such length.
        vocab_file: the vocab.txt that the input section names, or None.

    Raises:
        DataError: names the first folder that differs, with its numbers and the model's.
    """
    for folder in folders:
        facts = read_facts(folder)
        if facts is None:
            _tell_unchecked(str(folder))
            continue
        own_size, own_length = facts.vocab_size, facts.length
        wrong = []
        for key, vocab_size in vocab_sizes.items():
            if own_size is not None and vocab_size is not None and differs(own_size, vocab_size):
                wrong.append(f"a vocabulary of {own_size} tokens where {key} is {vocab_size}")
        if None not in (own_length, length) and own_length != length:
            wrong.append(f"sequences of {own_length} where max_sequence_length is {length}")
        if wrong:
            raise DataError(
                f"{folder}: must hold records of the model's vocabulary and sequence length. "
                f"Received: {', '.join(wrong)}, as its {MANIFEST} tells. Name another data_dir, "
                "make the records again, or set these keys to what the records are."
            )
    check_one_vocabulary(folders, vocab_file)


def check_one_vocabulary(folders, vocab_file=None):
    """Checks that folders were made with one vocabulary, where their manifests tell.

    Args:
        folders: paths.
        vocab_file: the vocab.txt that it must be, or None; the first folder counts where it cannot
            be read.

    Returns:
        What has that vocabulary, and its digest; each None where nothing tells.

    Raises:
        DataError: names the first folder that differs, its vocabulary and the other one.
    """
    name, expected = vocab_file, _digest_of(vocab_file)
    for folder in folders:
        facts = read_facts(folder)
        if facts is None or facts.vocabulary_sha256 is None:
            continue
        if expected is None:
            name, expected = f"{facts.made_with}, as {folder}", facts.vocabulary_sha256
        elif facts.vocabulary_sha256 != expected:
            raise DataError(
                f"{folder}: must hold records made with the tokens of {name}. Received: those of "
                f"{facts.made_with}, which are others or have other numbers, as its {MANIFEST} "
                "tells. Name another data_dir, or make the records again."
            )
    return name, expected


def check_sections(sections):
    """Checks that folders and vocab.txt files of several input sections have one vocabulary.

    Args:
        sections: input sections; what they do not name counts for nothing.

    Raises:
        DataError: names what differs; see `check_one_vocabulary`.
    """
    found = [getattr(section, "data_dir", None) or [] for section in sections]
    lists = ([each] if isinstance(each, str) else each for each in found)
    name, expected = check_one_vocabulary([folder for each in lists for folder in each])
    for section in sections:
        # Files of a section with a tokenizer_type are of other forms.
        path = None if hasattr(section, "tokenizer_type") else getattr(section, "vocab_file", None)
        digest = _digest_of(path)
        if expected is None:
            name, expected = path, digest
        elif digest not in (None, expected):
            raise DataError(
                f"{path}: vocab_file must hold the tokens of {name}, on the same lines. Received: "
                "others, or other numbers. Name the vocab.txt that training has."
            )


def _digest_of(vocab_file):
    try:
        text = Path(vocab_file or "").read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return vocabulary_facts(word_pieces(text))["vocabulary_sha256"]


def check_tokens(where, tokens, vocab_size):
    """Checks that tokens are among the model's, also of records that no manifest describes.

    Args:
        where: file of the tokens.
        tokens: sequence of integers, such as those of the first record.
        vocab_size: tokens that the model has; None where it is not known.

    Raises:
        DataError: if one of them is not.
    """
    largest = max(tokens, default=0)
    if vocab_size is not None and largest >= vocab_size:
        raise DataError(
            f"{where}: must hold tokens below vocab_size, {vocab_size}. Received: {largest}. Name "
            "another data_dir, or make the records again with the vocabulary of the model."
        )


def differs(records, model):
    """Tells whether records of so many tokens are of another vocabulary than the model's."""
    unused = model - records
    return not 0 <= unused <= min(MOST_UNUSED, records // UNUSED_SHARE)


def read_facts(folder):
    """Returns the Facts of a folder, or None where it has no manifest of a preparation.

    Raises:
        DataError: if its manifest is damaged.
    """
    path = Path(folder, MANIFEST)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        settings = manifest.get("settings")
        if "settings" not in manifest:
            return None
        lengths = [settings[key] for key in LENGTH_KEYS if settings.get(key) is not None]
        size = manifest.get("vocab_size")
        for number in (size, *lengths):
            if not isinstance(number, (int, type(None))):
                raise TypeError(f"{number!r}, which is no whole number")
        files = [file for file, *_ in settings.get("vocabulary", ())]
        return Facts(
            size,
            next(iter(lengths), None),
            manifest.get("vocabulary_sha256"),
            " and ".join(files) or "the 256 bytes",
            settings.get("labels"),
            _tokens_and_bytes(settings, manifest.get("counts", {})),
        )
    except OSError:
        return None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: must be what a preparation wrote. Received: {error}. Restore it, or make the "
            "records again."
        ) from error


def _tokens_and_bytes(settings, counts):
    text_bytes, tokens = counts.get("text_bytes"), counts.get("tokens")
    if settings.get("tokenizer_type") == "ByteTokenizer":
        tokens = text_bytes  # the ends of texts left out, as where text is read as it is
    return (tokens, text_bytes) if tokens and text_bytes else None


@functools.cache  # one line a folder and run
def _tell_unchecked(folder):
    tf.logging.info(
        "%s: no %s of a preparation, so nothing tells the vocabulary of its records",
        folder,
        MANIFEST,
    )
