"""Tests of classifier/encoding.py: the layout of pairs, and truncation."""

from __future__ import annotations

import pytest

from modelzoo.bert.fine_tuning.classifier.glue_files import PairEncoder, truncate_longest
from tests.modelzoo.bert.fine_tuning.made_data import VOCABULARY, write_vocabulary


def encode(tmp_path, texts, length=32):
    encoder = PairEncoder(str(write_vocabulary(tmp_path)), True, length)
    return encoder.encode([texts])[0]


def tokens(example):
    return " ".join(VOCABULARY[number] for number in example.ids)


def test_single_sentence_is_between_cls_and_sep(tmp_path):
    example = encode(tmp_path, ("The Film was DULL",))
    assert tokens(example) == "[CLS] the film was dull [SEP]" and example.first == 6


def test_pair_has_a_sep_after_each_and_a_segment_each(tmp_path):
    example = encode(tmp_path, ("raining", "a story"))
    assert (
        tokens(example) == "[CLS] rain ##ing [SEP] a story [SEP]"
        and example.segments.tolist() == [0] * 4 + [1] * 3
    )


def reference_truncation(a, b, limit):
    """The rule of Devlin et al.: token by token from the longer one, of equal ones the second."""
    while a + b > limit:
        if a > b:
            a -= 1
        else:
            b -= 1
    return [a, b]


@pytest.mark.parametrize(("a", "b", "limit"), [(5, 9, 10), (9, 5, 10), (7, 7, 7), (2, 3, 9)])
def test_longer_text_of_a_pair_is_truncated(a, b, limit):
    assert truncate_longest([a, b], limit) == reference_truncation(a, b, limit)


def test_truncated_examples_fill_the_row(tmp_path):
    example = encode(tmp_path, ("the film was a story of rain", "dull"), length=8)
    assert tokens(example) == "[CLS] the film was a [SEP] dull [SEP]"
    assert len(encode(tmp_path, ("the " * 50,), length=8).ids) == 8
