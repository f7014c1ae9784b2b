"""Tests of which sentences are picked, and of finding their tokens in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.bert.fine_tuning.extractive_summarization.selection import select, summaries

CLS, SEP = 2, 3


@pytest.mark.parametrize(
    ("probabilities", "count", "top_k", "picked"),
    [
        ([0.9, 0.1, 0.5, 0.49], 4, None, [0, 2]),
        ([0.1, 0.4, 0.3], 3, None, [1]),  # none is likely: the likeliest
        ([0.1, 0.4, 0.9], 2, None, [1]),  # the third is padding
        ([0.1, 0.7, 0.3, 0.9], 4, 3, [1, 2, 3]),
        ([0.2, 0.2, 0.2], 3, 2, [0, 1]),
        ([0.2, 0.3], 2, 3, [0, 1]),
        ([], 0, 3, []),
    ],
)
def test_picked_sentences(probabilities, count, top_k, picked):
    assert select(probabilities, count, top_k) == picked


def batch():
    ids = np.array([[CLS, 5, 6, SEP, CLS, 7, SEP, CLS, 8, 9], [CLS, 5, SEP, 0, 0, 0, 0, 0, 0, 0]])
    indices = np.array([[0, 4, 7], [0, 0, 0]])
    weights = np.array([[1, 1, 1], [1, 0, 0]])
    labels = np.array([[0, 1, 1], [1, 0, 0]])
    probabilities = np.array([[0.9, 0.2, 0.8], [0.1, 0.9, 0.9]])
    return ids, indices, weights, labels, probabilities


def test_sentences_of_a_batch_are_its_tokens():
    pairs = summaries(*batch(), sep_id=SEP, top_k=None)
    assert pairs[0] == ([[5, 6], [8, 9]], [[7], [8, 9]])
    assert pairs[1] == ([[5]], [[5]])


def test_true_summaries_are_those_of_the_records_where_there_are_any():
    highlights = np.array([[5, 6, SEP, 7, SEP, 0], [9, SEP, 0, 0, 0, 0]])
    pairs = summaries(*batch(), highlights, sep_id=SEP, top_k=1)
    assert pairs[0] == ([[5, 6]], [[5, 6], [7]])
    assert pairs[1] == ([[5]], [[9]])
