"""Encodes sentences and pairs: [CLS] first [SEP], and for pairs second [SEP].

Source of the layout and of the truncation: Devlin et al. (2018). S is the sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelzoo.bert.fine_tuning.encoding import Encoder


@dataclass(frozen=True)
class Encoded:
    """The tokens of one example.

    Attributes:
        ids: [n] int32, n at most S.
        first: number of tokens in segment 0. The others are in segment 1.
    """

    ids: np.ndarray
    first: int

    @property
    def segments(self):
        """The segment of each token, [n] int32."""
        return (np.arange(len(self.ids)) >= self.first).astype(np.int32)


class PairEncoder(Encoder):
    """Encodes examples of one or two texts."""

    def __init__(self, vocab_file, do_lower, max_length):
        super().__init__(vocab_file, do_lower)
        self._max_length = max_length

    def encode(self, texts):
        """Encodes examples; returns a list of Encoded."""
        columns = [self.tokenizer.encode_batch(list(column)) for column in zip(*texts)]
        return [self._join(example) for example in zip(*columns)]

    def _join(self, texts):
        cls, sep = self.tokenizer.cls_id, self.tokenizer.sep_id
        kept = truncate_longest(list(map(len, texts)), self._max_length - 1 - len(texts))
        ids = [np.array([cls], np.int32)]
        for tokens, length in zip(texts, kept):
            ids += [tokens[:length], np.array([sep], np.int32)]
        return Encoded(np.concatenate(ids), 2 + kept[0])


def truncate_longest(lengths, limit):
    """Shortens the longest of several texts, token by token, until all fit.

    Of two that are equally long the later one is shortened.

    Args:
        limit: number of tokens of all texts, at most.

    Returns:
        The lengths to keep.
    """
    lengths = list(lengths)
    while sum(lengths) > limit:
        longest = max(lengths)
        lengths[len(lengths) - 1 - lengths[::-1].index(longest)] -= 1
    return lengths
