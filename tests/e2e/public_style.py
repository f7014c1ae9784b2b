"""Small model_fns in the style of public Estimator code, by name.

Each takes (features, labels, mode) of both_sides.input_fn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_estimator.python.estimator.canned import head as canned_heads

v1 = tf.compat.v1
Model = Callable[[Any, Any, str], Any]
MODELS: dict[str, Model] = {}
# Models that also train on from their checkpoint: with state besides layers and slots.
RESUMED = {
    "piecewise_constants",
    "variables_that_are_no_resources",
    "average_of_the_loss_that_nothing_runs",
    "count_in_a_local_variable",
    "note_of_the_step_built_after_its_update",
}


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
def piecewise_constants(features: Any, labels: Any, mode: str) -> Any:
    step = v1.train.get_global_step()
    rate = v1.train.piecewise_constant(step, [2, 4], [0.1, 0.05, 0.01])
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [1.0, 0.5, 0.8])
    return _scheduled(features, labels, mode, rate * schedule(step))


@model
def warm_up_by_condition(features: Any, labels: Any, mode: str) -> Any:
    step = tf.cast(v1.train.get_global_step(), tf.float32)
    rate = tf.cond(step < 3.0, lambda: 0.02 * (step + 1.0), lambda: tf.constant(0.05))
    return _scheduled(features, labels, mode, rate)


# Heads of tf.estimator, which check labels within conditionals.


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
def labels_behind_a_check_of_scores(features: Any, labels: Any, mode: str) -> Any:
    scores = tf.squeeze(network(features["x"]), -1)
    if labels is None:
        return regression(mode, scores, labels)
    with tf.control_dependencies([tf.debugging.assert_less(scores, 1000.0)]):
        y = tf.numpy_function(lambda array: array, [labels["y"]], tf.float32)
    y.set_shape([4])
    return regression(mode, scores, dict(labels, y=y))


@model
def asserts_inside_functions_and_branches(features: Any, labels: Any, mode: str) -> Any:
    @tf.function
    def block(x: Any) -> Any:
        tf.debugging.assert_less(tf.reduce_max(tf.abs(x)), 1000.0)
        return tf.tanh(x)

    def branch() -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(features["x"], 100.0)]):
            return 2.0 * features["x"]

    x = tf.cond(tf.reduce_sum(features["x"]) > 0.0, branch, lambda: features["x"])
    scores = tf.squeeze(block(network(x)), -1)
    guard = tf.cond(
        tf.reduce_all(scores < 1000.0), tf.no_op, lambda: tf.debugging.Assert(False, [scores])
    )
    with tf.control_dependencies([guard]):
        return regression(mode, tf.identity(scores), labels)


# Gradients that override those of an op type.


def _overridden(*overrides: tuple[str, Any, Any]) -> Model:
    """Applies functions in order, each with the gradient of an op type overridden."""

    def with_override(features: Any, labels: Any, mode: str) -> Any:
        hidden = v1.layers.dense(features["x"], 5, name="hidden")
        for op_type, function, gradient in overrides:
            name = gradient
            if callable(gradient):
                name = f"{op_type}{next(_numbers)}"
                tf.RegisterGradient(name)(gradient)
            with v1.get_default_graph().gradient_override_map({op_type: name}):
                hidden = function(hidden)
        scores = tf.squeeze(v1.layers.dense(hidden, 1, name="output"), -1)
        return regression(mode, scores, labels)

    return with_override


def _of_product(op: Any, upstream: Any) -> Any:
    first, second = op.inputs
    by_second = 0.5 * tf.matmul(first, upstream, transpose_a=True)
    return tf.matmul(upstream, second, transpose_b=True), by_second


_numbers = itertools.count()
MODELS["straight_through_sign"] = _overridden(("Sign", tf.sign, lambda op, upstream: upstream))
MODELS["overrides_of_several_kinds"] = _overridden(
    ("MatMul", lambda x: tf.tanh(tf.matmul(x, tf.matmul(0.1 * tf.transpose(x), x))), _of_product),
    ("Tanh", lambda x: x + tf.tanh(x), lambda op, upstream: None),
    ("Identity", tf.identity, "Relu"),
    ("Relu", tf.nn.relu, lambda op, dy: dy * tf.cast(op.outputs[0] > 0.3, tf.float32)),
)


@model
def overridden_gradient_of_a_gradient(features: Any, labels: Any, mode: str) -> Any:
    name = f"Squared{next(_numbers)}"
    tf.RegisterGradient(name)(lambda op, upstream: upstream * op.outputs[0])
    hidden = v1.layers.dense(features["x"], 5, name="hidden")
    with v1.get_default_graph().gradient_override_map({"Relu": name}):
        active = tf.nn.relu(hidden)
    scores = tf.squeeze(v1.layers.dense(active, 1, name="output"), -1)
    if labels is None:
        return regression(mode, scores, labels)
    (slope,) = tf.gradients(scores, hidden)
    loss = tf.reduce_mean(tf.square(scores - labels["y"])) + 0.1 * tf.reduce_mean(slope**2)
    return regression(mode, scores, labels, loss=loss)


@model
def overridden_gradient_in_a_branch(features: Any, labels: Any, mode: str) -> Any:
    name = f"Tripled{next(_numbers)}"
    tf.RegisterGradient(name)(lambda op, upstream: 3.0 * upstream)
    hidden = v1.layers.dense(features["x"], 5, name="hidden")

    def branch() -> Any:
        with v1.get_default_graph().gradient_override_map({"Tanh": name}):
            return tf.tanh(hidden)

    hidden = tf.cond(tf.reduce_sum(features["x"]) > -1e9, branch, lambda: hidden)
    return regression(mode, tf.reduce_sum(hidden, -1), labels)


# Variables.


@model
def variables_that_are_no_resources(features: Any, labels: Any, mode: str) -> Any:
    start = v1.random_normal_initializer(seed=1)
    kernel = v1.get_variable("kernel", [6, 1], use_resource=False, initializer=start)
    offset = v1.Variable(tf.zeros([1]), use_resource=False, name="offset")
    scores = tf.squeeze(tf.matmul(features["x"], kernel) + offset, -1)
    return regression(mode, scores, labels, v1.train.AdamOptimizer(0.1))


@model
def average_of_the_loss_that_nothing_runs(features: Any, labels: Any, mode: str) -> Any:
    """The average waits before a copy of the loss; no gradient needs the copy itself."""
    scores = tf.squeeze(network(features["x"]), -1)
    if labels is None:
        return regression(mode, scores, labels)
    loss = tf.reduce_mean(tf.square(scores - labels["y"]))
    average = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([average.apply([loss])]):
        copy = tf.identity(loss)
    spec = regression(mode, scores, labels, loss=copy if mode == "train" else loss)
    return spec._replace(loss=loss)


@model
def count_in_a_local_variable(features: Any, labels: Any, mode: str) -> Any:
    zeros, local = v1.zeros_initializer(), [v1.GraphKeys.LOCAL_VARIABLES]
    seen = v1.get_variable("seen", [], tf.int64, zeros, collections=local, trainable=False)
    with tf.control_dependencies([v1.assign_add(seen, 1)]):
        x = features["x"] / tf.cast(seen.read_value(), tf.float32)
    return regression(mode, tf.squeeze(network(x), -1), labels)


@model
def note_of_the_step_built_after_its_update(features: Any, labels: Any, mode: str) -> Any:
    notes = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0, name="notes")
    spec = regression(mode, tf.squeeze(network(features["x"]), -1), labels)
    if mode != tf.estimator.ModeKeys.TRAIN:
        return spec
    note = notes.insert(["doubled"], [v1.train.get_global_step() * 2])
    return spec._replace(train_op=tf.group(spec.train_op, note))


# What follows the model in the session.


@model
def names_of_classes(features: Any, labels: Any, mode: str) -> Any:
    logits = network(features["x"], 3)
    names = tf.gather(tf.constant(["a", "b", "c"]), tf.argmax(logits, -1))
    return regression(mode, logits[:, 0], labels, name=tf.strings.join([names, "!"]))
