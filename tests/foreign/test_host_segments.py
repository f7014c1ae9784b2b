"""What has no IR form runs on the host: before the step, between two parts of it, or after it."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.errors import UnsupportedOpError
from tests.e2e.both_sides import check, estimator, input_fn
from tests.e2e.public_style import network, regression
from tests.messages import raises

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def between(features, labels, mode):
    """Python, text and mathematics that no gradient needs; random numbers before, metrics after."""
    hidden = v1.layers.dense(features["x"], 4, tf.tanh, name="first")
    hidden = tf.nn.dropout(hidden, rate=0.3 if mode == "train" else 0.0, seed=4)
    rounded = tf.py_function(tf.round, [4.0 * hidden], tf.float32)
    rounded = hidden + tf.stop_gradient(tf.ensure_shape(rounded, hidden.shape) / 4.0 - hidden)
    scores = tf.squeeze(network(rounded), -1)
    scores = v1.Print(scores, ["loss", tf.reduce_mean(scores)], first_n=1)
    text = tf.strings.as_string(scores, precision=1)
    near = tf.numpy_function(lambda array: 2.0 * array, [tf.strings.to_number(text)], tf.float32)
    near = tf.ensure_shape(near, [4])
    bessel = tf.stop_gradient(tf.math.special.bessel_j0(scores))
    scores = scores + 0.1 * near + tf.linalg.trace(tf.linalg.diag(bessel))
    names = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([1], ["positive"], tf.int64, tf.string), "other"
    ).lookup(tf.cast(scores > 0.0, tf.int64))
    spec = regression(mode, scores, labels, name=names, text=text)
    if mode == tf.estimator.ModeKeys.EVAL:
        spec.eval_metric_ops["near"] = v1.metrics.mean(near)
    return spec


def chosen(features, labels, mode):
    """Several branches, and prints without a reader."""
    scores = tf.squeeze(network(features["x"]), -1)
    number = tf.cast(features["ids"][0, 0] % 4, tf.int32)
    branches = [lambda: scores, lambda: 2.0 * scores, lambda: tf.tanh(scores) + features["x"][:, 0]]
    first = tf.switch_case(number, branches)
    total = tf.reduce_sum(features["x"])
    second = tf.case([(total > 1.0, branches[1]), (total > -1.0, branches[2])], branches[0])
    with tf.control_dependencies([v1.Print(total, [total], first_n=1)]):
        return regression(mode, first + second, labels)


@pytest.mark.parametrize("model", [between, chosen], ids=lambda model: model.__name__)
def test_wafer_and_host_agree(model, tmp_path):
    check(model, tmp_path, False)


def test_a_gradient_through_an_operation_without_an_ir_form_is_refused(tmp_path):
    def through(features, labels, mode):
        scores = tf.squeeze(network(features["x"]), -1)
        scores = tf.py_function(lambda x: 2.0 * x, [scores], tf.float32)
        return regression(mode, tf.ensure_shape(scores, [4]), labels)

    with raises(UnsupportedOpError, "EagerPyFunc (1x", "built at test_host_segments.py:"):
        estimator(through, tmp_path, True, []).train(input_fn, max_steps=1)


def test_a_hook_evaluates_in_memory_and_unknown_feeds_are_type_errors(tmp_path):
    seen = []

    def model(features, labels, mode):
        spec = regression(mode, tf.squeeze(network(features["x"]), -1), labels)
        if mode == tf.estimator.ModeKeys.EVAL:
            loss = tf.numpy_function(lambda x: seen.append(x) or x, [spec.loss], tf.float32)
            spec.eval_metric_ops["seen"] = v1.metrics.mean(loss)
        return spec

    class Feeds(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            with pytest.raises(TypeError, match="Cannot interpret feed_dict key"):
                run_context.session.run(v1.train.get_global_step(), {"none:0": 1.0})

    made = estimator(model, tmp_path, True, [])
    hook = tf.estimator.experimental.InMemoryEvaluatorHook(made, input_fn, steps=1, every_n_iter=2)
    made.train(input_fn, max_steps=3, hooks=[hook, Feeds()])
    in_memory = seen[-1]
    metrics = made.evaluate(input_fn, steps=1)
    np.testing.assert_allclose(in_memory, metrics["seen"], rtol=1e-5)
