"""Tests of classifier/encoding.py: the layout of pairs, cutting, padding."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.bert.fine_tuning.classifier.encoding import PairEncoder, cut_longest, pad_rows
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_vocabulary


def encode(tmp_path, texts, length=32):
    encoder = PairEncoder(str(write_vocabulary(tmp_path)), True, length)
    return encoder.encode([texts])[0]


def tokens(example):
    return " ".join(VOCABULARY[number] for number in example.ids)


def test_single_sentence_stands_between_cls_and_sep(tmp_path):
    example = encode(tmp_path, ("The Film was DULL",))
    assert tokens(example) == "[CLS] the film was dull [SEP]" and example.first == 6


def test_pair_has_a_sep_after_each_and_a_segment_each(tmp_path):
    example = encode(tmp_path, ("raining", "a story"))
    assert tokens(example) == "[CLS] rain ##ing [SEP] a story [SEP]" and example.first == 4


def reference_cut(a, b, room):
    """The rule of Devlin et al.: token by token off the longer, of equals the second."""
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    return [a, b]


@pytest.mark.parametrize(("a", "b", "room"), [(5, 9, 10), (9, 5, 10), (7, 7, 7), (2, 3, 9)])
def test_longer_of_a_pair_is_cut(a, b, room):
    assert cut_longest([a, b], room) == reference_cut(a, b, room)


def test_cut_examples_fill_the_row(tmp_path):
    example = encode(tmp_path, ("the film was a story of rain", "dull"), length=8)
    assert tokens(example) == "[CLS] the film was a [SEP] dull [SEP]"
    assert len(encode(tmp_path, ("the " * 50,), length=8).ids) == 8


def test_padding_is_masked(tmp_path):
    examples = [encode(tmp_path, ("the", "film")), encode(tmp_path, ("a story of rain",))]
    ids, mask, segments = pad_rows(examples, 8)
    np.testing.assert_array_equal(mask, [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1]])
    np.testing.assert_array_equal(segments, [[0, 0, 0, 1, 1, 0, 0, 0], [0] * 8])
    assert (ids[mask == 1] == 0).all() and (ids[mask == 0] > 1).all()
