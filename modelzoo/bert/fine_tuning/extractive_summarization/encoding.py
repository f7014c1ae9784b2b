"""Turns an article into the tokens of BERTSUM: ``[CLS] sentence [SEP]`` for each of its sentences.

Segments alternate from sentence to sentence (Liu 2019, section 2.1). S is the sequence length, C
the number of sentences there is room for, H the tokens kept of the true summary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from modelzoo.bert.sentences import split_sentences
from modelzoo.common.tokenizers.tokenizers import load_tokenizer, require_tokens


@dataclass(frozen=True)
class EncodingSettings:
    """How articles are cut; sentences and tokens beyond the limits are dropped.

    Attributes:
        vocab_file: vocab.txt of a BERT.
        do_lower_case: whether text is put in lower case, without accents.
        max_sequence_length: S.
        max_cls_tokens: C.
        min_sentences_per_sequence: an article with fewer sentences is left out of training,
        max_sentences_per_sequence: and sentences after these are not seen.
        min_tokens_per_sentence: a sentence with fewer tokens is not seen,
        max_tokens_per_sentence: and one with more is cut.
        max_highlight_tokens: H.
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
    """What the model sees of an article.

    Attributes:
        sentences: the texts of its sentences, whole, list of str.
        ids: [n] int32, n at most S.
        segments: [n] int32, 0 and 1 in turn.
        cls_indices: [number of sentences] int32, the place of each one's [CLS].
        highlights: the true summary's sentences, list of str.
    """

    sentences: list
    ids: np.ndarray
    segments: np.ndarray
    cls_indices: np.ndarray
    highlights: list


class ArticleEncoder:
    """Encodes articles.

    Args:
        settings: EncodingSettings.

    Raises:
        ConfigError: if the vocabulary is none or lacks [CLS], [SEP] or [PAD].
        DataError: if the file of the vocabulary is not there.
    """

    def __init__(self, settings):
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

    def encode(self, paragraphs, highlights):
        """Encodes an article; a sentence that does not fit whole is cut.

        Args:
            paragraphs: list of str.
            highlights: list of str, the true summary.

        Returns:
            An EncodedArticle, of no sentence if all are too short.
        """
        settings, tokenizer = self._settings, self._tokenizer
        texts = [text for paragraph in paragraphs for text in split_sentences(paragraph)]
        sentences: list[str] = []
        ids: list[int] = []
        places: list[int] = []
        for text, tokens in zip(texts, tokenizer.encode_batch(texts)):
            if len(tokens) < settings.min_tokens_per_sentence:
                continue
            room = settings.max_sequence_length - len(ids) - 2
            limit = min(settings.max_sentences_per_sequence, settings.max_cls_tokens)
            if room < settings.min_tokens_per_sentence or len(sentences) == limit:
                break
            sentences.append(text)
            places.append(len(ids))
            kept = tokens[: min(room, settings.max_tokens_per_sentence)]
            ids += [tokenizer.cls_id, *kept, tokenizer.sep_id]
        row = np.array(ids, np.int32)
        starts = np.zeros(len(row), np.int32)
        starts[places] = 1
        segments = (np.cumsum(starts) + 1) % 2
        return EncodedArticle(
            sentences, row, segments.astype(np.int32), np.array(places, np.int32), highlights
        )

    def highlight_ids(self, highlights):
        """Returns the true summary, [SEP] after each sentence, padded or cut: [H] int32."""
        row: list[int] = []
        for tokens in self._tokenizer.encode_batch(highlights):
            row += [*tokens, self._tokenizer.sep_id]
        size = self._settings.max_highlight_tokens
        return np.array([*row[:size], *[self.pad_id] * (size - len(row))], np.int32)


def pad_article(article, length, places, pad_id):
    """Makes rows of fixed lengths.

    Args:
        article: EncodedArticle.
        length: S.
        places: C.
        pad_id: token that stands for padding.

    Returns:
        By name: input_ids, input_mask (1 = token), segment_ids [S], cls_indices [C] int32, and
        cls_weights [C] float32 (1 = sentence).
    """
    size, count = len(article.ids), len(article.cls_indices)
    ids = np.full(length, pad_id, np.int32)
    ids[:size] = article.ids
    segments, indices = np.zeros(length, np.int32), np.zeros(places, np.int32)
    segments[:size] = article.segments
    indices[:count] = article.cls_indices
    return {
        "input_ids": ids,
        "input_mask": (np.arange(length) < size).astype(np.int32),
        "segment_ids": segments,
        "cls_indices": indices,
        "cls_weights": (np.arange(places) < count).astype(np.float32),
    }
