"""Small model_fns in the style of public Estimator code, by name.

Each takes (features, labels, mode) of both_sides.input_fn.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
from tensorflow_estimator.python.estimator.canned import head as canned_heads

v1 = tf.compat.v1
Model = Callable[[Any, Any, str], Any]
MODELS: dict[str, Model] = {}


def model(function: Model) -> Model:
    """Enters a model into the table."""
    MODELS[function.__name__] = function
    return function


def network(x: Any, units: int = 1) -> Any:
    """[N, units]: two dense layers."""
    hidden = v1.layers.dense(x, 5, activation=tf.tanh, name="hidden")
    return v1.layers.dense(hidden, units, name="output")


def regression(
    mode: str, scores: Any, labels: Any, optimizer: Any = None, loss: Any = None, **more: Any
) -> Any:
    """A spec: mean squared error of scores [N], or a given loss, and gradient descent."""
    predictions = {"scores": scores, **more}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    if loss is None:
        loss = tf.reduce_mean(tf.square(scores - labels["y"]))
    optimizer = optimizer or v1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    metrics = {"error": v1.metrics.mean_absolute_error(labels["y"], scores)}
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


# Schedules that are conditionals on the global step.


def _scheduled(features: Any, labels: Any, mode: str, rate: Any) -> Any:
    v1.summary.scalar("rate", rate)
    scores = tf.squeeze(network(features["x"]), -1)
    return regression(mode, scores, labels, v1.train.MomentumOptimizer(rate, 0.9))


@model
def piecewise_constant(features: Any, labels: Any, mode: str) -> Any:
    step = v1.train.get_global_step()
    rate = v1.train.piecewise_constant(step, [2, 4], [0.1, 0.05, 0.01])
    return _scheduled(features, labels, mode, rate)


@model
def piecewise_constant_of_keras(features: Any, labels: Any, mode: str) -> Any:
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])
    return _scheduled(features, labels, mode, schedule(v1.train.get_global_step()))


@model
def warm_up_by_condition(features: Any, labels: Any, mode: str) -> Any:
    step = tf.cast(v1.train.get_global_step(), tf.float32)
    rate = tf.cond(step < 3.0, lambda: 0.02 * (step + 1.0), lambda: tf.constant(0.05))
    return _scheduled(features, labels, mode, rate)


# Heads of tf.estimator, which check labels behind conditionals.


def _head(make: Callable[[], Any], units: int, key: str) -> Model:
    def with_head(features: Any, labels: Any, mode: str) -> Any:
        wanted = labels
        if labels is not None:
            kinds = labels["class"]
            wanted = {
                "value": labels["y"],
                "class": kinds,
                "binary": tf.cast(kinds > 0, tf.int64),
                "many": tf.one_hot(kinds, 3, dtype=tf.int64),
            }[key]
        optimizer = tf.keras.optimizers.legacy.SGD(0.1)
        optimizer.iterations = v1.train.get_or_create_global_step()
        logits = network(features["x"], units)
        return make().create_estimator_spec(
            features, mode, logits, wanted, optimizer, v1.trainable_variables()
        )

    return with_head


def _canned_head(make: Callable[[], Any], units: int, binary: bool) -> Model:
    def with_head(features: Any, labels: Any, mode: str) -> Any:
        wanted = None if labels is None else labels["class"]
        if binary and wanted is not None:
            wanted = tf.cast(wanted > 0, tf.int64)
        optimizer = v1.train.AdagradOptimizer(0.1)
        logits = network(features["x"], units)
        return make().create_estimator_spec(
            features, mode, logits, labels=wanted, optimizer=optimizer
        )

    return with_head


MODELS["regression_head"] = _head(tf.estimator.RegressionHead, 1, "value")
MODELS["binary_class_head"] = _head(tf.estimator.BinaryClassHead, 1, "binary")
MODELS["multi_class_head"] = _head(lambda: tf.estimator.MultiClassHead(3), 3, "class")
MODELS["multi_label_head"] = _head(lambda: tf.estimator.MultiLabelHead(3), 3, "many")
MODELS["canned_binary_head"] = _canned_head(
    canned_heads._binary_logistic_head_with_sigmoid_cross_entropy_loss, 1, True
)
MODELS["canned_multi_class_head"] = _canned_head(
    lambda: canned_heads._multi_class_head_with_softmax_cross_entropy_loss(3), 3, False
)


# Checks.


@model
def asserts_in_forward_and_loss(features: Any, labels: Any, mode: str) -> Any:
    x = features["x"]
    with tf.control_dependencies([tf.debugging.assert_less(tf.abs(x), 100.0)]):
        x = tf.identity(x)
    scores = tf.squeeze(network(x), -1)
    if labels is None:
        return regression(mode, scores, labels)
    same = tf.debugging.assert_equal(tf.shape(scores), tf.shape(labels["y"]))
    with tf.control_dependencies([tf.debugging.assert_all_finite(scores, "scores"), same]):
        loss = tf.reduce_mean(tf.square(scores - labels["y"]))
    return regression(mode, scores, labels, loss=tf.debugging.check_numerics(loss, "loss"))


@model
def assert_inside_a_conditional(features: Any, labels: Any, mode: str) -> Any:
    scores = tf.squeeze(network(features["x"]), -1)
    guard = tf.cond(
        tf.reduce_all(scores < 1000.0), tf.no_op, lambda: tf.debugging.Assert(False, [scores])
    )
    with tf.control_dependencies([guard]):
        return regression(mode, tf.identity(scores), labels)


@model
def labels_behind_a_check_of_scores(features: Any, labels: Any, mode: str) -> Any:
    scores = tf.squeeze(network(features["x"]), -1)
    if labels is None:
        return regression(mode, scores, labels)
    with tf.control_dependencies([tf.debugging.assert_less(scores, 1000.0)]):
        y = tf.numpy_function(lambda array: array, [labels["y"]], tf.float32)
    y.set_shape([4])
    return regression(mode, scores, dict(labels, y=y))
