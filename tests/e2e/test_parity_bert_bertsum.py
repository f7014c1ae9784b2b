"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: sentences picked."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np

from modelzoo.bert.fine_tuning.tasks import TASKS
from tests.e2e.host_and_wafer import Run, batches, check_parity, estimator

pytestmark = pytest.mark.tf
B, S, C, V = 3, 14, 4, 40
SECTION = {
    "data_processor": "BertSumTfRecordsProcessor",
    "data_dir": "x",
    "vocab_size": V,
    "max_sequence_length": S,
    "max_cls_tokens": C,
    "batch_size": B,
}
TREE = {
    "model_name": "bert.fine_tuning.extractive_summarization",
    "train_input": SECTION,
    "eval_input": SECTION,
    "model": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_heads": 2,
        "filter_size": 32,
        "use_segment_embedding": True,
        "layer_norm_epsilon": 1e-5,
        "loss_weight": 0.5,
    },
    "optimizer": {"optimizer_type": "adam", "learning_rate": 0.003},
    "runconfig": {"max_steps": 20},
}


def summarization(features, labels, mode, params):
    """The zoo's model_fn with a tiny configuration."""
    return TASKS["extractive_summarization"].model_fn(features, labels, mode, TREE)


def drawn():
    """Three batches whose sequences end in padding, and so do their lists of sentences."""
    rng = np.random.default_rng(4)
    mask = (np.arange(S) >= np.array([S, 11, 5])[:, None]).astype(np.int32)
    indices = np.array([[0, 3, 6, 10], [0, 4, 8, 0], [0, 0, 0, 0]], np.int32)
    weights = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]], np.float32)
    made = []
    for _ in range(3):
        features = {
            "input_ids": rng.integers(0, V, (B, S)).astype(np.int32),
            "input_mask": mask,
            "segment_ids": rng.integers(0, 2, (B, S)).astype(np.int32) * (1 - mask),
            "cls_indices": indices,
            "cls_weights": weights,
        }
        labels = rng.integers(0, 2, (B, C)) * (weights > 0)
        made.append((features, labels.astype(np.int32)))
    return made


def loss_by_hand(probabilities, labels, weights):
    """Negative log-likelihood of each sentence, with two classes."""
    right = np.where(labels == 1, probabilities, 1 - probabilities)
    return 0.5 * -(np.log(right) * weights).sum() / len(labels)


def test_summarization_trains_as_on_the_host(tmp_path):
    host, _ = check_parity(summarization, drawn(), tmp_path)
    assert host.losses[-1] < host.losses[0]


def test_loss_is_that_of_the_probabilities_of_sentences_and_padding_has_no_part(tmp_path):
    changed = []
    for features, labels in drawn():
        features = dict(features)
        padding = features["input_mask"] == 1
        features["input_ids"] = np.where(padding, 17, features["input_ids"])
        unused = features["cls_weights"] == 0
        features["cls_indices"] = np.where(unused, 2, features["cls_indices"])
        changed.append((features, np.where(unused, 1, labels).astype(np.int32)))
    made = estimator(summarization, tmp_path / "run", Run())
    made.train(batches(drawn()), max_steps=1, use_cs=True)
    losses = [
        made.evaluate(batches(arrays), steps=3, use_cs=True)["loss"]
        for arrays in (drawn(), changed)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-6)

    numbered = [
        ({**features, "article_ids": np.arange(B, dtype=np.int32)[:, None]}, labels)
        for features, labels in drawn()
    ]
    found = made.predict(lambda: batches(numbered)().take(3), use_cs=True)
    probabilities = np.array([row["probabilities"] for row in found]).reshape(3, B, C)
    expected = [
        loss_by_hand(p, labels, features["cls_weights"])
        for p, (features, labels) in zip(probabilities, drawn())
    ]
    assert losses[0] == pytest.approx(np.mean(expected), rel=1e-5)
