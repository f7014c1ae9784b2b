"""Compares 20 steps on the wafer with 20 steps of TensorFlow on the host: answers as spans."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np

from modelzoo.bert.fine_tuning.tasks import TASKS
from tests.e2e.host_and_wafer import Run, batches, check_parity, estimator

pytestmark = pytest.mark.tf
B, S, V = 3, 12, 40
SECTION = {
    "data_processor": "QuestionAnsweringDataProcessor",
    "data_dir": "x",
    "vocab_size": V,
    "max_sequence_length": S,
    "batch_size": B,
}
TREE = {
    "model_name": "bert.fine_tuning.question_answering",
    "train_input": SECTION,
    "eval_input": SECTION,
    "model": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_heads": 2,
        "filter_size": 32,
        "use_segment_embedding": True,
        "layer_norm_epsilon": 1e-5,
    },
    "optimizer": {
        "optimizer_type": "adamw",
        "learning_rate": 0.002,
        "use_bias_correction": True,
        "weight_decay_rate": 0.01,
        "max_gradient_norm": 1.0,
    },
    "runconfig": {"max_steps": 20},
}


def question_answering(features, labels, mode, params):
    """The zoo's model_fn with a tiny configuration."""
    return TASKS["question_answering"].model_fn(features, labels, mode, TREE)


def drawn():
    """Three batches of windows that end in padding, one without an answer."""
    rng = np.random.default_rng(4)
    lengths = np.array([S, 9, 6])[:, None]
    mask = (np.arange(S) >= lengths).astype(np.int32)
    made = []
    for _ in range(3):
        features = {
            "input_ids": rng.integers(0, V, (B, S)).astype(np.int32),
            "input_mask": mask,
            "segment_ids": (np.arange(S) >= 4).astype(np.int32) * (1 - mask),
        }
        labels = np.sort(rng.integers(4, lengths, (B, 2)), axis=1)
        labels[1] = 0
        made.append((features, labels.astype(np.int32)))
    return made


def test_question_answering_trains_as_on_the_host(tmp_path):
    host, _ = check_parity(question_answering, drawn(), tmp_path)
    assert host.losses[-1] < host.losses[0]


def test_what_stands_in_padding_changes_no_loss(tmp_path):
    changed = []
    for features, labels in drawn():
        padding = features["input_mask"] == 1
        ids = np.where(padding, 17, features["input_ids"])
        segments = np.where(padding, 1, features["segment_ids"])
        changed.append(({**features, "input_ids": ids, "segment_ids": segments}, labels))
    made = estimator(question_answering, tmp_path / "run", Run())
    made.train(batches(drawn()), max_steps=1, use_cs=True)
    losses = [
        made.evaluate(batches(arrays), steps=3, use_cs=True)["loss"]
        for arrays in (drawn(), changed)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-6)
