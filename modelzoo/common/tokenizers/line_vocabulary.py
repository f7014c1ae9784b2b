"""Reads vocabularies that are files with a token on each line, numbered from 0."""

from __future__ import annotations

from cerebras_tf.errors import ConfigError
from modelzoo.common.files.text_lines import split

TRANSLATION_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")


def word_pieces(text):
    """Returns the tokens of the text of a vocab.txt of BERT, in the order of their numbers."""
    return split(text.rstrip("\r\n"))


def line_tokens(lines):
    """Returns the tokens of a vocabulary for text in tokens, in the order of their numbers.

    Args:
        lines: of its file, a token each; where it lacks the special tokens they come first.
    """
    tokens = [line.split()[0] for line in lines if line.split()]
    lacks = tokens[: len(TRANSLATION_TOKENS)] != list(TRANSLATION_TOKENS)
    return [*TRANSLATION_TOKENS, *tokens] if lacks else tokens


def require_tokens_differ(path, tokens):
    """Raises a ConfigError if a token stands twice in a vocabulary.

    Args:
        path: the vocabulary.
        tokens: those of its lines from the first on, as text or bytes.
    """
    first: dict[str | bytes, int] = {}
    for line, token in enumerate(tokens, start=1):
        before = first.setdefault(token, line)
        if before != line:
            raise ConfigError(
                f"{path}: must have each token on one line. Received: {token[:40]!r} on lines "
                f"{before} and {line}. Copy the file again; without one of the lines, the tokens "
                "behind it would have other numbers."
            )
