"""Where an op has no gradient rule, TensorFlow's own backward graph is captured instead."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.frontend import program_source
from cerebras_tf.frontend.program_source import CompilingSource
from tests.e2e import both_sides
from tests.e2e.public_style import network, regression

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def weight():
    return v1.get_variable("weight", [8, 5], initializer=v1.random_normal_initializer(seed=1))


def trained(loss, mode):
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def model_fn(features, labels, mode):
    """A penalty on the gradient of a softmax: its derivative is a second one."""
    x = features["x"]
    chance = tf.nn.softmax(tf.matmul(x, weight()))
    slope = tf.gradients(tf.reduce_sum(chance[:, 0]), x)[0]
    return trained(
        10.0 * tf.reduce_mean(tf.square(slope)) + tf.reduce_mean(tf.square(chance)), mode
    )


def input_fn():
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("f")
    return tf.data.Dataset.from_tensors({"x": x}).repeat()


def trained_weight(folder, use_cs):
    config = CSRunConfig(tf_random_seed=1)
    estimator = CerebrasEstimator(model_fn, str(folder), config=config, use_cs=use_cs)
    estimator.train(input_fn, max_steps=6)
    return estimator.get_variable_value("weight")


def test_a_second_derivative_through_softmax_trains_as_on_the_host(tmp_path):
    wafer = trained_weight(tmp_path / "wafer", True)
    host = trained_weight(tmp_path / "host", False)
    np.testing.assert_allclose(wafer, host, rtol=1e-4, atol=1e-6)


def test_gradients_of_tensorflows_own_backward_graph_pass_the_boundary_too(tmp_path, monkeypatch):
    programs = []
    compiled = CompilingSource._compile_static

    def kept(step, types):
        programs.append(compiled(step, types))
        return programs[-1]

    monkeypatch.setattr(CompilingSource, "_compile_static", kept)
    trained_weight(tmp_path, True)
    (program,) = programs
    assert {name: len(given) for name, given in program.gradients.items()} == {"weight": 1}


def test_what_another_pass_refuses_is_not_captured_again(tmp_path, monkeypatch):
    """TensorFlow's backward graph is for gradients without a rule, and for nothing else."""
    compiled, captured = [], CompilingSource._capture

    def refuse(*_):
        raise UnsupportedOpError("a pass: must have another op. Received: this one. Change it.")

    def kept(step, *types):
        compiled.append(types)
        return captured(step, *types)

    monkeypatch.setattr(program_source, "compile_layers", refuse)
    monkeypatch.setattr(CompilingSource, "_capture", kept)
    with pytest.raises(UnsupportedOpError, match="a pass: must have another op"):
        trained_weight(tmp_path, True)
    assert len(compiled) == 1


def overridden_model_fn(features, labels, mode):
    """A penalty on the gradient of an op whose gradient the user has overridden."""
    x = features["x"]
    with v1.get_default_graph().gradient_override_map({"Tanh": "Sigmoid"}):
        bent = tf.tanh(tf.matmul(x, weight()))
    slope = tf.gradients(tf.reduce_sum(bent), x)[0]
    return trained(tf.reduce_mean(tf.square(slope)), mode)


def test_what_trains_also_validates(tmp_path):
    estimator = CerebrasEstimator(overridden_model_fn, str(tmp_path / "model"), use_cs=True)
    assert estimator.compile(input_fn, validate_only=True) is None
    assert not (tmp_path / "model" / "compiled").exists()
    estimator.train(input_fn, max_steps=1)


def test_numbers_of_gathered_rows_are_read_in_front_of_the_boundary_too(tmp_path):
    """The gather of an embedding reads the same numbers as its sparse gradient."""

    def embedded(features, labels, mode):
        table = v1.get_variable("table", [6, 8], initializer=v1.ones_initializer())
        chance = tf.nn.softmax(tf.matmul(tf.nn.embedding_lookup(table, features), weight()))
        slope = tf.gradients(tf.reduce_sum(chance[:, 0]), table)[0]
        return trained(tf.reduce_sum(tf.square(slope.values)) + tf.reduce_mean(chance), mode)

    def ids():
        return tf.data.Dataset.from_tensors(np.array([1, 4, 1], np.int32)).repeat()

    found = {}
    for use_cs in (False, True):
        config = CSRunConfig(tf_random_seed=1)
        estimator = CerebrasEstimator(embedded, str(tmp_path / str(use_cs)), config=config)
        estimator.train(ids, max_steps=3, use_cs=use_cs)
        found[use_cs] = estimator.get_variable_value("table")
    assert not np.allclose(found[False], 1.0)
    np.testing.assert_allclose(found[True], found[False], rtol=1e-4, atol=1e-6)


def test_a_loop_whose_iterations_have_no_bound_trains_as_on_the_host(tmp_path):
    def model(features, labels, mode):
        scores = tf.squeeze(network(features["x"]), -1)
        is_small = lambda x: tf.reduce_sum(tf.abs(x)) < 90.0  # noqa: E731
        scaled = tf.while_loop(is_small, lambda x: [2.0 * x], [scores])[0]
        return regression(mode, scaled, labels)

    both_sides.check(model, tmp_path)
