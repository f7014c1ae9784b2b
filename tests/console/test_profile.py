"""Steps of a training are profiled where the run configuration asks for it."""

from __future__ import annotations

import json
import logging

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels.timeline import recording

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def model_fn(features, labels, mode):
    drawn = v1.glorot_uniform_initializer(seed=1)
    inner = v1.layers.dense(features, 64, tf.nn.gelu, kernel_initializer=drawn)
    logits = v1.layers.dense(inner, 3, kernel_initializer=drawn)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    step = v1.train.get_global_step()
    train_op = v1.train.AdamOptimizer(1e-3).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    random = np.random.default_rng(0)
    x, y = random.standard_normal((16, 32)).astype("f"), random.integers(0, 3, 16, np.int32)
    return tf.data.Dataset.from_tensors((x, y)).repeat()


def trained(folder, caplog, steps, use_cs=True, **settings):
    config = CSRunConfig(tf_random_seed=1, **settings)
    estimator = CerebrasEstimator(model_fn, str(folder), config=config, use_cs=use_cs)
    caplog.clear()
    with caplog.at_level(logging.INFO, "tensorflow"):
        estimator.train(input_fn, max_steps=steps)
    assert recording() is None
    return estimator, [text for text in caplog.messages if text.startswith("profile: ")]


def test_steps_behind_the_first_two_are_recorded(tmp_path, caplog):
    estimator, said = trained(tmp_path, caplog, 6, profile=3)
    path = tmp_path / "profile" / "trace.json"
    assert len(said) == 1 and said[0].startswith(f"profile: {path}\n3 steps of ")
    assert "The step is bound by " in said[0]
    events = json.loads(path.read_text())["traceEvents"]
    by_kind = {}
    for event in events:
        by_kind.setdefault(event.get("cat"), []).append(event)
    assert [event["name"] for event in by_kind["step"]] == ["step 1", "step 2", "step 3"]
    assert len(by_kind["wafer step"]) == 3
    products = sum("matmul" in event["name"] for event in by_kind["kernel"])
    assert products and not products % 3
    for inner in by_kind["wafer step"]:
        assert any(
            outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
            for outer in by_kind["step"]
        )
    plain, _ = trained(tmp_path / "plain", caplog, 6)
    for name in plain.get_variable_names():
        np.testing.assert_array_equal(
            estimator.get_variable_value(name), plain.get_variable_value(name), err_msg=name
        )


def test_a_training_that_ends_before_says_what_there_is(tmp_path, caplog, monkeypatch):
    _, said = trained(tmp_path / "three", caplog, 3, profile=5)
    assert said[0].startswith("profile: training ended when 1 of 5 steps were recorded, after 2")
    assert "\n1 step of " in said[1]
    _, said = trained(tmp_path / "two", caplog, 2, profile=5)
    assert said == ["profile: training ended within the 2 warm-up steps; nothing was recorded"]
    monkeypatch.setattr("cerebras_tf.runtime.profiler.MAX_CALLS", 1)
    _, said = trained(tmp_path / "four", caplog, 4, profile=5)
    assert said[0].startswith("profile: 1 of 5 steps are recorded, as these have ")
    assert len(said) == 2 and "\n1 step of " in said[1]


def test_the_host_is_not_profiled(tmp_path, caplog):
    _, said = trained(tmp_path, caplog, 1, use_cs=False, profile=1)
    assert said == ["profile: only training on the wafer is profiled"]


def test_a_profile_needs_a_number_of_steps():
    for wrong in (0, True, "3"):
        with pytest.raises(ConfigError, match="profile .*must be "):
            CSRunConfig(profile=wrong)
