"""Turns sentences and pairs into tokens: [CLS] first [SEP], and for pairs second [SEP].

The layout and the way long pairs are cut are those of Devlin et al. (2018). S is the sequence
length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelzoo.common.tokenizers.tokenizers import load_tokenizer, require_tokens


@dataclass(frozen=True)
class Encoded:
    """The tokens of one example.

    Attributes:
        ids: [n] int32, n at most S.
        first: how many of them belong to segment 0; the others to segment 1.
    """

    ids: np.ndarray
    first: int


class PairEncoder:
    """Encodes examples of one or two texts.

    Args:
        vocab_file: vocab.txt of a BERT.
        do_lower: whether text is put in lower case, without accents.
        max_length: S.

    Attributes:
        pad_id: the number of [PAD].

    Raises:
        ConfigError: if the vocabulary is none or lacks [CLS] or [SEP].
        DataError: if the file of the vocabulary is not there.
    """

    def __init__(self, vocab_file, do_lower, max_length):
        self._tokenizer = load_tokenizer("BertTokenizer", vocab_file, do_lower_case=do_lower)
        require_tokens(self._tokenizer, "cls", "sep", "pad")
        self._max_length = max_length
        self.pad_id = self._tokenizer.pad_id

    @property
    def vocabulary(self):
        """What a manifest tells of the vocabulary."""
        return self._tokenizer.facts

    def encode(self, texts):
        """Encodes examples.

        Args:
            texts: a list of tuples of one text, or all of two.

        Returns:
            A list of Encoded.
        """
        parts = [self._tokenizer.encode_batch(list(column)) for column in zip(*texts)]
        return [self._join(example) for example in zip(*parts)]

    def _join(self, parts):
        begin, end = self._tokenizer.cls_id, self._tokenizer.sep_id
        kept = cut_longest(list(map(len, parts)), self._max_length - 1 - len(parts))
        ids = [np.array([begin], np.int32)]
        for part, length in zip(parts, kept):
            ids += [part[:length], np.array([end], np.int32)]
        return Encoded(np.concatenate(ids), 2 + kept[0])


def cut_longest(lengths, room):
    """Shortens the longest of several texts, token by token, until all fit.

    Of two that are equally long the later one is cut.

    Args:
        lengths: tokens of each text.
        room: tokens there may be.

    Returns:
        The lengths to keep.
    """
    lengths = list(lengths)
    while sum(lengths) > room:
        longest = max(lengths)
        lengths[len(lengths) - 1 - lengths[::-1].index(longest)] -= 1
    return lengths


def pad_rows(examples, length, pad_id=0):
    """Stacks examples as the model takes them.

    Args:
        examples: a list of B Encoded, none longer than `length`.
        length: S.
        pad_id: token that stands for padding.

    Returns:
        input_ids, input_mask (1 where there is padding) and segment_ids, each [B, S] int32.
    """
    ids = np.full((len(examples), length), pad_id, np.int32)
    mask = np.ones((len(examples), length), np.int32)
    segments = np.zeros((len(examples), length), np.int32)
    for row, example in enumerate(examples):
        size = len(example.ids)
        ids[row, :size] = example.ids
        mask[row, :size] = 0
        segments[row, example.first : size] = 1
    return ids, mask, segments
