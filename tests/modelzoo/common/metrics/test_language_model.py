"""Tests of modelzoo/common/metrics/language_model.py against sums over the whole set in Python."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common import metrics
from tests.modelzoo.common.metrics.batches import EXAMPLES, evaluate

S = 6


def columns(scale=1.0):
    """Labels, predictions, cross entropy and weights, flat tokens; most of the last are padding."""
    generator = np.random.default_rng(0)
    labels, predictions = generator.integers(0, 3, (2, EXAMPLES, S)).astype(np.int32)
    cross_entropy = generator.gamma(2.0, size=(EXAMPLES, S)).astype(np.float32)
    weights = (np.arange(S) < generator.integers(1, S, (EXAMPLES, 1))).astype(np.float32)
    return labels, predictions, cross_entropy, weights * scale


def expected():
    """Accuracy and mean loss of the tokens that count."""
    hits = loss = count = 0.0
    for label, prediction, cost, weight in zip(*(c.ravel().tolist() for c in columns())):
        if weight:
            hits, loss, count = hits + (label == prediction), loss + cost, count + 1
    return hits / count, loss / count


def test_lm_metrics_are_those_of_the_whole_set():
    accuracy, loss = expected()
    found = evaluate(functools.partial(metrics.lm_metrics, ratio=0.25), *columns())
    assert found["eval/accuracy"] == pytest.approx(accuracy)
    assert found["eval/lm_perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)
    assert found["eval/bits_per_byte"] == pytest.approx(loss * 0.25 / math.log(2), rel=1e-6)
    assert len(found) == 3
    unknown = evaluate(functools.partial(metrics.lm_metrics, ratio=None), *columns())
    assert set(unknown) == set(found) - {"eval/bits_per_byte"}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("masked_lm_metrics", ["eval/accuracy_masked_lm", "eval/mlm_perplexity"]),
        ("seq2seq_lm_metrics", ["eval/accuracy_lm", "eval/perplexity_lm"]),
    ],
)
def test_metrics_of_masked_and_given_tokens_are_those_of_the_whole_set(function, names):
    accuracy, loss = expected()
    found = evaluate(getattr(metrics, function), *columns())
    assert list(found) == names
    assert found[names[0]] == pytest.approx(accuracy)
    assert found[names[1]] == pytest.approx(math.exp(loss), rel=1e-6)


def test_masked_lm_metrics_count_a_token_once_however_a_batch_scales_its_weights():
    scale = np.repeat([1.0, 0.1, 3.0], [5, 1, EXAMPLES - 6])[:, None].astype(np.float32)
    found = evaluate(metrics.masked_lm_metrics, *columns(scale))
    assert found == evaluate(metrics.masked_lm_metrics, *columns())


def test_perplexity_of_a_diverged_model_is_no_error():
    labels, predictions, cross_entropy, weights = columns()
    found = evaluate(metrics.masked_lm_metrics, labels, predictions, cross_entropy + 1e6, weights)
    assert found["eval/mlm_perplexity"] > 1e38
