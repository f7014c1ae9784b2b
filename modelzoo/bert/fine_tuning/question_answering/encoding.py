"""Turns a question and its paragraph into windows of tokens, and places of characters into tokens.

A window is ``[CLS] question [SEP] part of the paragraph [SEP]``; a paragraph that is too long is
cut into overlapping parts (Devlin et al. 2018 and their released code). S is the sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from cerebras_tf.errors import ConfigError
from modelzoo.common.tokenizers.tokenizers import load_tokenizer, require_tokens

SHORTEST = 8  # tokens of a window, at least: three marks, some question and some paragraph
LONGER_PART = 0.01  # weight of a part's length in the choice of a token's context


@dataclass(frozen=True)
class EncodingSettings:
    """How questions and paragraphs are cut.

    Attributes:
        vocab_file: vocab.txt of a BERT.
        do_lower_case: whether text is put in lower case, without accents.
        max_seq_length: S.
        doc_stride: tokens of the paragraph between the beginnings of two parts.
        max_query_length: tokens of a question that are kept.
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
        ids: tokens [n] int32, n at most S.
        first: place of the part's first token among them.
        start: place of that token in the paragraph.
        count: tokens of the part.
        has_most_context: [count] bool, False for a token that another part shows with more context.
    """

    ids: np.ndarray
    first: int
    start: int
    count: int
    has_most_context: np.ndarray


class WindowEncoder:
    """Encodes questions and paragraphs.

    Args:
        settings: EncodingSettings.

    Raises:
        ConfigError: if the vocabulary is none or lacks [CLS], [SEP] or [PAD], or if S is too short.
        DataError: if the file of the vocabulary is not there.
    """

    def __init__(self, settings):
        if settings.max_seq_length < SHORTEST:
            raise ConfigError(
                f"max_seq_length: must be at least {SHORTEST}. Received: "
                f"{settings.max_seq_length}. Give a larger one."
            )
        self._settings = settings
        self._tokenizer: Any = load_tokenizer(
            "BertTokenizer", settings.vocab_file, do_lower_case=settings.do_lower_case
        )
        require_tokens(self._tokenizer, "cls", "sep", "pad")
        self.pad_id = self._tokenizer.pad_id

    @property
    def vocabulary(self):
        """What a manifest tells of the vocabulary."""
        return self._tokenizer.facts

    def context(self, text):
        """Tokenizes a paragraph: returns a Context."""
        return Context(*self._tokenizer.encode_with_offsets(text))

    def windows(self, question, context):
        """Makes the windows of a question.

        Args:
            question: its text.
            context: Context.

        Returns:
            A list of at least one Window.
        """
        settings, tokenizer = self._settings, self._tokenizer
        # Three marks, and at least one token of the paragraph.
        limit = min(settings.max_query_length, settings.max_seq_length - 4)
        tokens = tokenizer.encode(question)[:limit]
        head = np.concatenate([[tokenizer.cls_id], tokens, [tokenizer.sep_id]]).astype(np.int32)
        room = settings.max_seq_length - len(head) - 1
        parts = cut_parts(len(context.ids), room, settings.doc_stride)
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


def cut_parts(length, room, stride):
    """Cuts a row of tokens into overlapping parts.

    Args:
        length: of the row.
        room: tokens of a part, at most.
        stride: tokens between the beginnings of two parts, `room` at most.

    Returns:
        Pairs (start, count); the last ends where the row does.
    """
    parts, start = [], 0
    while True:
        count = min(room, length - start)
        parts.append((start, count))
        if start + count >= length:
            return parts
        start += min(count, stride)


def most_context(parts, length):
    """Finds for each token the part that shows most of what stands on both sides of it.

    That is the part with the largest minimum of the tokens to the left and to the right, plus
    LONGER_PART times its length; of equal ones the first (Devlin et al., run_squad.py).

    Args:
        parts: pairs of `cut_parts`.
        length: tokens of the row.

    Returns:
        [length] int64, numbers of parts.
    """
    scores = np.full((len(parts), length), -np.inf)
    for number, (start, count) in enumerate(parts):
        places = np.arange(count)
        sides = np.minimum(places, count - 1 - places)
        scores[number, start : start + count] = sides + LONGER_PART * count
    return scores.argmax(axis=0)


def token_span(context, start, end) -> Optional[tuple[int, int]]:
    """Finds the fewest tokens that hold a run of characters.

    Args:
        context: Context.
        start: first character.
        end: one past the last.

    Returns:
        First and last token, or None if no token holds any of the characters.
    """
    inside = (context.offsets[:, 0] < end) & (context.offsets[:, 1] > start)
    places = np.flatnonzero(inside)
    return (int(places[0]), int(places[-1])) if len(places) else None


def answer_positions(window, span):
    """Returns the first and last place of an answer in a window.

    Both are 0, [CLS], where there is no answer or the window does not hold all of it.

    Args:
        window: Window.
        span: first and last token in the paragraph, or None.
    """
    if span is None or span[0] < window.start or span[1] >= window.start + window.count:
        return 0, 0
    shift = window.first - window.start
    return span[0] + shift, span[1] + shift


def pad_window(window, length, pad_id):
    """Makes a row of a fixed length.

    Args:
        window: Window.
        length: S.
        pad_id: token that stands for padding.

    Returns:
        input_ids, input_mask (1 = token) and segment_ids (1 = paragraph), each [S] int32.
    """
    places, size = np.arange(length), len(window.ids)
    ids = np.full(length, pad_id, np.int32)
    ids[:size] = window.ids
    mask = (places < size).astype(np.int32)
    return ids, mask, mask * (places >= window.first)
