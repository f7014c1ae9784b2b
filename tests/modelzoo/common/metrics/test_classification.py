"""Tests of classification.py against counts in plain Python."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common import metrics
from tests.modelzoo.common.metrics.batches import EXAMPLES, evaluate

BINARY = functools.partial(metrics.classifier_metrics, num_classes=2)


def columns(seed, num_classes):
    return np.random.default_rng(seed).integers(0, num_classes, (2, EXAMPLES)).astype(np.int32)


def pearson(labels, predictions):
    """Matthews correlation is Pearson's of the two columns of zeros and ones."""
    return np.corrcoef(labels, predictions)[0, 1]


def harmonic_mean(labels, predictions, of):
    """F1 by its other definition, from precision and recall."""
    hits = sum(a == b == of for a, b in zip(labels, predictions))
    precision, recall = hits / sum(predictions == of), hits / sum(labels == of)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("seed", range(4))
def test_two_classes_have_accuracy_f1_and_matthews_correlation(seed):
    labels, predictions = columns(seed, 2)
    found = evaluate(BINARY, labels, predictions)
    assert list(found) == ["eval/accuracy_cls", "eval/f1_score", "eval/mcc"]
    assert found["eval/accuracy_cls"] == pytest.approx(np.mean(labels == predictions))
    assert found["eval/f1_score"] == pytest.approx(harmonic_mean(labels, predictions, 1))
    assert found["eval/mcc"] == pytest.approx(pearson(labels, predictions), abs=1e-6)


@pytest.mark.parametrize("answer", [0, 1])
def test_a_classifier_that_always_says_the_same_has_no_correlation(answer):
    labels, _ = columns(0, 2)
    found = evaluate(BINARY, labels, np.full_like(labels, answer))
    assert found["eval/mcc"] == 0.0


def test_labels_all_right_or_all_wrong_have_correlation_plus_or_minus_one():
    labels, _ = columns(0, 2)
    assert evaluate(BINARY, labels, labels)["eval/mcc"] == pytest.approx(1.0)
    assert evaluate(BINARY, labels, 1 - labels)["eval/mcc"] == pytest.approx(-1.0)
    assert evaluate(BINARY, labels, 1 - labels)["eval/f1_score"] == 0.0


def test_matched_and_mismatched_parts_have_their_own_accuracy():
    labels, predictions = columns(5, 3)
    matched = np.arange(EXAMPLES) % 3 > 0
    found = evaluate(
        lambda a, b, c: metrics.classifier_metrics(a, b, 3, is_matched=c),
        labels,
        predictions,
        matched.astype(np.int32),
    )
    hits = labels == predictions
    assert found == {
        "eval/accuracy_cls": pytest.approx(hits.mean()),
        "eval/accuracy_matched": pytest.approx(hits[matched].mean()),
        "eval/accuracy_mismatched": pytest.approx(hits[~matched].mean()),
    }


def test_a_part_without_examples_has_no_accuracy():
    labels, predictions = columns(5, 3)
    parts = lambda a, b, c: metrics.classifier_metrics(a, b, 3, is_matched=c)  # noqa: E731
    found = evaluate(parts, labels, predictions, np.ones(EXAMPLES, np.int32))
    assert found["eval/accuracy_matched"] == found["eval/accuracy_cls"]
    assert math.isnan(found["eval/accuracy_mismatched"])


def test_next_sentence_labels_may_stand_in_a_column():
    labels, predictions = columns(6, 2)
    found = evaluate(metrics.next_sentence_metrics, labels[:, None], predictions)
    assert found == {"eval/accuracy_cls": pytest.approx(np.mean(labels == predictions))}
