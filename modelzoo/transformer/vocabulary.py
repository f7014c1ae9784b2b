"""The vocabularies of the encoder-decoder: encode sentences and decode tokens.

In all of them tokens 0 to 3 are <pad>, <unk>, <s> and </s>.
"""

import functools
import os

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.files.path_advice import advice_on_path
from modelzoo.common.files.text_lines import columns, read_lines
from modelzoo.common.tokenizers.tokenizers import (
    TRANSLATION_TOKENS,
    line_tokens,
    load_tokenizer,
    require_tokens_differ,
)
from modelzoo.transformer.pairs import UNK

JOINT = "@@ "  # subword-nmt's mark of a token that is continued by the next one


class LineVocabulary:
    """A vocabulary with one token in each line, for text with tokens separated by spaces.

    Args:
        path: the file. If it lacks the special tokens, they are added at the start.
    """

    def __init__(self, path):
        if not os.path.exists(path):
            raise DataError(
                f"{path}: must be a file with one token per line. Received: No such file or "
                f"directory. {advice_on_path(path)} For plain text, use tokenizer_file instead, "
                "which `cerebras-tf prepare vocab` writes."
            )
        lines = read_lines(path)
        blank = next((n for n, line in enumerate(lines, start=1) if not columns(line)), None)
        if blank is not None and any(map(columns, lines[blank:])):
            raise DataError(
                f"{path}:{blank}: must be a token, because the number of its line is its id. "
                "Received: a blank line. Copy the file again, or remove the line."
            )
        self._tokens = line_tokens(lines)
        require_tokens_differ(path, self._tokens)
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self.vocab_size = len(self._tokens)

    def encode_batch(self, sentences):
        """Returns the tokens of each sentence, a list of [n] int32."""
        known = self._ids
        return [
            np.array([known.get(token, UNK) for token in columns(sentence)], np.int32)
            for sentence in sentences
        ]

    def decode(self, ids):
        """Returns the text of tokens, with subwords joined."""
        words = " ".join(self._tokens[i] for i in ids if i >= len(TRANSLATION_TOKENS))
        return (words + " ").replace(JOINT, "").strip()


class ByteVocabulary:
    """The 256 bytes after the special tokens."""

    vocab_size = len(TRANSLATION_TOKENS) + 256

    def encode_batch(self, sentences):
        """Returns the tokens of each sentence, a list of [n] int32."""
        shift = np.int32(len(TRANSLATION_TOKENS))
        return [
            np.frombuffer(sentence.encode("utf-8"), np.uint8).astype(np.int32) + shift
            for sentence in sentences
        ]

    def decode(self, ids):
        """Returns the text of tokens, with U+FFFD for invalid UTF-8."""
        shift = len(TRANSLATION_TOKENS)
        return bytes(int(i) - shift for i in ids if i >= shift).decode("utf-8", errors="replace")


def load_joint_tokenizer(path):
    """Loads the tokenizer.json of both languages, as cerebras-tf prepare vocab makes it."""
    tokenizer = load_tokenizer("JsonTokenizer", path)
    received = [tokenizer.token_id(token) for token in TRANSLATION_TOKENS]
    if received != list(range(len(TRANSLATION_TOKENS))):
        raise ConfigError(
            f"{path}: tokens 0 to 3 must be {', '.join(TRANSLATION_TOKENS)}. Received: "
            f"{', '.join(map(str, received))} as their ids. Make the vocabulary with "
            f"--special_tokens {' '.join(TRANSLATION_TOKENS)}."
        )
    return tokenizer


def load_vocabularies(section):
    """Loads the vocabularies of source and target of a text section.

    Returns two objects with `vocab_size`, `encode_batch` and `decode`.
    """
    if section.tokenizer_file:
        joint = load_joint_tokenizer(section.tokenizer_file)
        found = {"src": joint, "tgt": joint}
    else:
        files = {"src": section.src_vocab_file, "tgt": section.tgt_vocab_file}
        found = {side: LineVocabulary(path) for side, path in files.items()}
    for side, vocabulary in found.items():
        given = getattr(section, f"{side}_vocab_size")
        if given not in (None, vocabulary.vocab_size):
            raise ConfigError(
                f"{side}_vocab_size: must be the size of the vocabulary, {vocabulary.vocab_size}, "
                f"including special tokens. Received: {given}. Correct the number or the file."
            )
    return found["src"], found["tgt"]


def vocabulary_sizes(section):
    """Returns the sizes of both vocabularies, as given or read from their files."""
    given = (section.src_vocab_size, section.tgt_vocab_size)
    if None not in given:
        return given
    files = (section.tokenizer_file, section.src_vocab_file, section.tgt_vocab_file)
    return _sizes_in(
        section, tuple(os.path.getmtime(f) if f and os.path.exists(f) else 0 for f in files)
    )


@functools.lru_cache(maxsize=4)
def _sizes_in(section, changed):
    """`changed` are modification times, so that a changed file is read again."""
    return tuple(vocabulary.vocab_size for vocabulary in load_vocabularies(section))
