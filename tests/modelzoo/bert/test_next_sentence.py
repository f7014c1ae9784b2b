"""Tests of modelzoo/bert/next_sentence.py: pairs of segments."""

from __future__ import annotations

import numpy as np

from modelzoo.bert.next_sentence import sentence_pairs, truncate_pair


def library(count=6, seed=0):
    """Documents of sentences; the tokens say document and place: 1000 * document + place."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        lengths = rng.integers(2, 9, rng.integers(1, 30))
        tokens = 1000 * number + np.arange(lengths.sum())
        made.append(np.split(tokens, np.cumsum(lengths)[:-1]))
    return made


def pairs(documents, index, seed=0, target=20):
    generator = np.random.default_rng(seed)
    return list(sentence_pairs(documents, index, lambda: target, generator))


def test_a_following_segment_goes_on_where_the_first_ends():
    documents = library()
    for index in range(len(documents)):
        for first, second, is_random in pairs(documents, index):
            if not is_random:
                joined = np.concatenate([first, second])
                np.testing.assert_array_equal(np.diff(joined), 1)
                assert joined[0] // 1000 == index


def test_a_random_segment_comes_from_another_document():
    documents = library()
    for index in range(len(documents)):
        for first, second, is_random in pairs(documents, index):
            assert np.all(first // 1000 == index)
            if is_random:
                assert np.all(second // 1000 == second[0] // 1000) and second[0] // 1000 != index


def test_every_sentence_of_a_document_is_used_and_in_order():
    documents = library()
    for index, document in enumerate(documents):
        own = [
            part
            for first, second, is_random in pairs(documents, index)
            for part in ([first] if is_random else [first, second])
        ]
        np.testing.assert_array_equal(np.concatenate(own), np.concatenate(document))


def test_about_half_of_the_pairs_do_not_follow():
    documents = [[np.array([number, place]) for place in range(400)] for number in range(3)]
    drawn = [is_random for index in range(3) for *_, is_random in pairs(documents, index)]
    assert len(drawn) > 100 and 0.4 < np.mean(drawn) < 0.6


def test_a_document_of_one_sentence_is_paired_at_random():
    documents = [[np.array([1, 2])], [np.array([3])]]
    ((first, second, is_random),) = pairs(documents, 0)
    assert is_random and first.tolist() == [1, 2] and second.tolist() == [3]


def test_truncation_takes_from_the_longer_at_both_ends():
    generator = np.random.default_rng(0)
    fronts = 0
    for _ in range(50):
        first, second = truncate_pair(np.arange(100), np.arange(200, 210), 30, generator)
        assert len(first) + len(second) == 30 and len(second) == 10
        np.testing.assert_array_equal(np.diff(first), 1)
        fronts += first[0]
    assert 30 < fronts / 50 < 50  # 80 tokens go, half of them in front


def test_truncation_leaves_both_a_token():
    for n in range(1, 6):
        for m in range(1, 6):
            generator = np.random.default_rng(n * 10 + m)
            first, second = truncate_pair(np.arange(n), np.arange(m), 2, generator)
            assert len(first) == len(second) == 1


def test_pairs_that_fit_are_not_touched():
    first, second = np.arange(3), np.arange(4)
    cut = truncate_pair(first, second, 7, np.random.default_rng(0))
    assert cut[0] is first and cut[1] is second
