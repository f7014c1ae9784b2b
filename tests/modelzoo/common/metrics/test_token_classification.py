"""Tests of modelzoo/common/metrics/token_classification.py against counts in plain Python."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common import metrics
from tests.modelzoo.common.metrics.batches import EXAMPLES, evaluate

NAMES = ["[PAD]", "B", "I", "O", "X", "[CLS]", "[SEP]"]
METRICS = functools.partial(metrics.token_classification_metrics, label_names=NAMES)
S = 12


def columns():
    """Sentences as the tokenizer leaves them: [CLS] tags and X [SEP], and padding."""
    generator = np.random.default_rng(0)
    labels = generator.choice([1, 2, 3, 4], (EXAMPLES, S), p=[0.2, 0.2, 0.4, 0.2])
    lengths = generator.integers(3, S, EXAMPLES)
    weights = np.arange(S) < lengths[:, None]
    labels[:, 0], labels[np.arange(EXAMPLES), lengths - 1] = 5, 6
    labels = np.where(weights, labels, 0)
    wrong = generator.random((EXAMPLES, S)) < 0.3
    predictions = np.where(wrong, generator.integers(0, len(NAMES), (EXAMPLES, S)), labels)
    return labels.astype(np.int32), predictions.astype(np.int32), weights.astype(np.float16)


def f1(pairs, of):
    """F1 of the labels `of`, from precision and recall."""
    hits = sum(a == b and a in of for a, b in pairs)
    precision = hits / sum(b in of for _, b in pairs)
    recall = hits / sum(a in of for a, _ in pairs)
    return 2 * precision * recall / (precision + recall)


def test_token_level_f1_is_over_the_labels_that_start_with_b_or_i():
    labels, predictions, weights = columns()
    pairs = [
        (a, b)
        for a, b, w in zip(labels.ravel(), predictions.ravel(), weights.ravel().tolist())
        if w
    ]
    found = evaluate(METRICS, labels, predictions, weights)
    assert found["eval/token_level_macro_f1"] == pytest.approx(
        (f1(pairs, {1}) + f1(pairs, {2})) / 2
    )
    assert found["eval/token_level_micro_f1"] == pytest.approx(f1(pairs, {1, 2}))


def chunks(numbers):
    """Places of the chunks of one type, written as the text they would be."""
    text = "".join({1: "B", 2: "I"}.get(number, "O") for number in numbers) + "O"
    found, start = set(), None
    for place, letter in enumerate(text):
        if start is not None and letter != "I":
            found.add((start, place))
        if letter == "B" or (letter == "I" and text[:place][-1:] in ("", "O")):
            start = place
        elif letter == "O":
            start = None
    return found


def test_entity_f1_leaves_out_the_later_pieces_of_words():
    labels, predictions, weights = columns()
    found_count = predicted_count = true_count = 0
    for row in range(EXAMPLES):
        kept = [i for i in range(S) if weights[row, i] and labels[row, i] in (1, 2, 3)]
        true, predicted = chunks(labels[row, kept]), chunks(predictions[row, kept])
        found_count += len(true & predicted)
        predicted_count, true_count = predicted_count + len(predicted), true_count + len(true)
    precision, recall = found_count / predicted_count, found_count / true_count
    found = evaluate(METRICS, labels, predictions, weights)
    assert found["eval/entity_precision"] == pytest.approx(precision)
    assert found["eval/entity_recall"] == pytest.approx(recall)
    assert found["eval/entity_f1"] == pytest.approx(2 / (1 / precision + 1 / recall))


def test_right_predictions_score_one_and_none_score_zero():
    labels, _, weights = columns()
    assert set(evaluate(METRICS, labels, labels, weights).values()) == {1.0}
    nothing = np.full_like(labels, NAMES.index("O"))
    assert set(evaluate(METRICS, labels, nothing, weights).values()) == {0.0}


def test_padding_does_not_count_whatever_is_predicted_there():
    labels, predictions, weights = columns()
    other = np.where(weights > 0, predictions, 1)
    assert evaluate(METRICS, labels, other, weights) == evaluate(
        METRICS, labels, predictions, weights
    )
