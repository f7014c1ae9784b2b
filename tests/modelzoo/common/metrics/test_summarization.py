"""Tests of modelzoo/common/metrics/summarization.py."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common import metrics
from modelzoo.common.metrics.rouge import mean_rouge
from tests.modelzoo.common.metrics.batches import EXAMPLES, evaluate

SENTENCES, WORDS = 4, 5


def picked(tokens, probabilities, labels):
    """The sentences with a probability of half or more against those of the labels."""
    return [
        [[row.tolist() for row in document[choice]] for choice in (chance >= 0.5, label > 0)]
        for document, chance, label in zip(tokens, probabilities, labels)
    ]


def test_rouge_metrics_are_the_mean_over_all_examples():
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 9, (EXAMPLES, SENTENCES, WORDS)).astype(np.int32)
    probabilities = generator.random((EXAMPLES, SENTENCES)).astype(np.float32)
    labels = generator.integers(0, 2, (EXAMPLES, SENTENCES)).astype(np.int32)
    found = evaluate(
        lambda *tensors: metrics.rouge_metrics(picked, tensors), tokens, probabilities, labels
    )
    texts = [
        ["\n".join(" ".join(map(str, line)) for line in side) for side in pair]
        for pair in picked(tokens, probabilities, labels)
    ]
    wanted = mean_rouge(*zip(*texts))
    assert len(found) == 12
    assert found == {f"eval/{name}": pytest.approx(wanted[name] / 100) for name in wanted}


def test_rouge_metrics_of_no_example_are_zero():
    tokens = np.zeros((EXAMPLES, 1), np.int32)
    found = evaluate(lambda column: metrics.rouge_metrics(lambda rows: [], [column]), tokens)
    assert set(found.values()) == {0.0}
