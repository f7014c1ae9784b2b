"""Encodes a question and its paragraph as windows of tokens.

A window is ``[CLS] question [SEP] part of the paragraph [SEP]``. A paragraph that is too long is
split into overlapping parts (Devlin et al. 2018 and their released code). S is the sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.errors import ConfigError
from modelzoo.common.fine_tuning.encoding import Encoder

MIN_LENGTH = 8  # tokens of a window: three special ones, some question and some paragraph
LENGTH_WEIGHT = 0.01  # of a part's length in the choice of the part with most context


@dataclass(frozen=True)
class EncodingSettings:
    """How questions and paragraphs become windows.

    Attributes:
        do_lower_case: whether text is lower-cased and stripped of accents.
        doc_stride: tokens between the starts of two parts of a paragraph.
    """

    vocab_file: str
    do_lower_case: bool = False
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64


@dataclass(frozen=True)
class Context:
    """A tokenized paragraph.

    Attributes:
        ids: [n] int32.
        offsets: [n, 2] int32: first and one past last character of each token.
    """

    ids: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Window:
    """A question with a part of its paragraph.

    Attributes:
        ids: [n] int32, n at most S.
        first: index in `ids` of the part's first token.
        has_most_context: [count] bool, False for a token that has more context in another part.
    """

    ids: np.ndarray
    first: int
    start: int
    count: int
    has_most_context: np.ndarray

    @property
    def segments(self):
        """1 for the paragraph and the last [SEP], else 0: [n] int32."""
        return (np.arange(len(self.ids)) >= self.first).astype(np.int32)


class WindowEncoder(Encoder):
    """Encodes questions and paragraphs."""

    def __init__(self, settings):
        if settings.max_seq_length < MIN_LENGTH:
            raise ConfigError(
                f"max_seq_length: must be at least {MIN_LENGTH}. Received: "
                f"{settings.max_seq_length}. Use a larger one."
            )
        super().__init__(settings.vocab_file, settings.do_lower_case)
        self._settings = settings

    def context(self, text):
        """Tokenizes a paragraph and returns a Context."""
        return Context(*self.tokenizer.encode_with_offsets(text))

    def windows(self, question, context):
        """Makes the windows of a question; returns a list of at least one Window."""
        settings, tokenizer = self._settings, self.tokenizer
        # Leaves three special tokens and one token of the paragraph.
        limit = min(settings.max_query_length, settings.max_seq_length - 4)
        tokens = tokenizer.encode(question)[:limit]
        head = np.concatenate([[tokenizer.cls_id], tokens, [tokenizer.sep_id]]).astype(np.int32)
        limit = settings.max_seq_length - len(head) - 1
        parts = split_spans(len(context.ids), limit, settings.doc_stride)
        most = most_context(parts, len(context.ids))
        end = np.array([tokenizer.sep_id], np.int32)
        return [
            Window(
                np.concatenate([head, context.ids[start : start + count], end]),
                len(head),
                start,
                count,
                most[start : start + count] == number,
            )
            for number, (start, count) in enumerate(parts)
        ]


def split_spans(length, limit, stride):
    """Splits a sequence of tokens into overlapping parts.

    Args:
        limit: tokens of a part, at most.
        stride: tokens between the starts of two parts, `limit` at most.

    Returns:
        Pairs (start, count). The last part ends where the sequence does.
    """
    parts, start = [], 0
    while True:
        count = min(limit, length - start)
        parts.append((start, count))
        if start + count >= length:
            return parts
        start += min(count, stride)


def most_context(parts, length):
    """Returns for each token the part in which it has most context on both sides.

    That is the part with the largest minimum of the tokens to the left and to the right, plus
    LENGTH_WEIGHT times its length, and the first of equal ones (Devlin et al., run_squad.py).

    Returns:
        [length] int64, indices of parts.
    """
    scores = np.full((len(parts), length), -np.inf)
    for number, (start, count) in enumerate(parts):
        places = np.arange(count)
        sides = np.minimum(places, count - 1 - places)
        scores[number, start : start + count] = sides + LENGTH_WEIGHT * count
    return scores.argmax(axis=0)


def token_span(context, start, end) -> Optional[tuple[int, int]]:
    """Returns the first and last token of a range of characters, None if it has no token."""
    inside = (context.offsets[:, 0] < end) & (context.offsets[:, 1] > start)
    places = np.flatnonzero(inside)
    return (int(places[0]), int(places[-1])) if len(places) else None


def answer_positions(window, span):
    """Returns the positions of an answer's first and last token in a window.

    Both are 0, [CLS], if there is no answer or the window contains only part of the answer.

    Args:
        span: first and last token in the paragraph, or None.
    """
    if span is None or span[0] < window.start or span[1] >= window.start + window.count:
        return 0, 0
    shift = window.first - window.start
    return span[0] + shift, span[1] + shift
