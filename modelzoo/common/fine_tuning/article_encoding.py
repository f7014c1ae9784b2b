"""Encodes an article for BERTSUM: ``[CLS] sentence [SEP]`` for each of its sentences.

Segments alternate from sentence to sentence (Liu 2019, section 2.1). S is the sequence length, C
the maximum number of sentences, H the number of tokens kept of the true summary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelzoo.common.fine_tuning.encoding import Encoder, pad_tokens
from modelzoo.common.fine_tuning.sentences import split_sentences


@dataclass(frozen=True)
class EncodingSettings:
    """Limits of articles. Sentences and tokens beyond them are dropped.

    Attributes:
        do_lower_case: whether text is lower-cased and stripped of accents.
        min_sentences_per_sequence: articles with fewer sentences are not used for training.
    """

    vocab_file: str
    do_lower_case: bool = False
    max_sequence_length: int = 512
    max_cls_tokens: int = 50
    min_sentences_per_sequence: int = 3
    max_sentences_per_sequence: int = 100
    min_tokens_per_sentence: int = 5
    max_tokens_per_sentence: int = 200
    max_highlight_tokens: int = 192


@dataclass(frozen=True)
class EncodedArticle:
    """The sentences and tokens of an article.

    Attributes:
        sentences: the texts of its sentences, not truncated, list of str.
        ids: [n] int32, n at most S.
        segments: [n] int32, alternately 0 and 1.
        cls_indices: [number of sentences] int32, the position of each one's [CLS].
    """

    sentences: list
    ids: np.ndarray
    segments: np.ndarray
    cls_indices: np.ndarray
    highlights: list


class ArticleEncoder(Encoder):
    """Encodes articles."""

    def __init__(self, settings):
        super().__init__(settings.vocab_file, settings.do_lower_case)
        self._settings = settings

    def encode(self, paragraphs, highlights):
        """Encodes an article. A sentence that does not fit is truncated.

        Returns an EncodedArticle, without sentences if all are too short.
        """
        settings, tokenizer = self._settings, self.tokenizer
        texts = [text for paragraph in paragraphs for text in split_sentences(paragraph)]
        sentences: list[str] = []
        ids: list[int] = []
        places: list[int] = []
        for text, tokens in zip(texts, tokenizer.encode_batch(texts)):
            if len(tokens) < settings.min_tokens_per_sentence:
                continue
            left = settings.max_sequence_length - len(ids) - 2
            limit = min(settings.max_sentences_per_sequence, settings.max_cls_tokens)
            if left < settings.min_tokens_per_sentence or len(sentences) == limit:
                break
            sentences.append(text)
            places.append(len(ids))
            kept = tokens[: min(left, settings.max_tokens_per_sentence)]
            ids += [tokenizer.cls_id, *kept, tokenizer.sep_id]
        row = np.array(ids, np.int32)
        starts = np.zeros(len(row), np.int32)
        starts[places] = 1
        segments = (np.cumsum(starts) + 1) % 2
        return EncodedArticle(
            sentences, row, segments.astype(np.int32), np.array(places, np.int32), highlights
        )

    def highlight_ids(self, highlights):
        """Returns the true summary, [SEP] after each sentence, padded or truncated: [H] int32."""
        row: list[int] = []
        for tokens in self.tokenizer.encode_batch(highlights):
            row += [*tokens, self.tokenizer.sep_id]
        size = self._settings.max_highlight_tokens
        return np.array([*row[:size], *[self.pad_id] * (size - len(row))], np.int32)


def pad_article(article, length, places, pad_id):
    """Pads an article to fixed lengths.

    Returns the arrays of `pad_tokens`, ``cls_indices`` [C] int32 and ``cls_weights`` [C] float32 (1
    for a sentence), by name.
    """
    count = len(article.cls_indices)
    indices = np.zeros(places, np.int32)
    indices[:count] = article.cls_indices
    weights = (np.arange(places) < count).astype(np.float32)
    tokens = pad_tokens(article, length, pad_id)
    return {**tokens, "cls_indices": indices, "cls_weights": weights}
