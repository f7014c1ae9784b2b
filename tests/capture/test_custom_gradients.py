"""Which custom gradients are prepared, and their results against TensorFlow."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.custom_gradients import has_override, prepare_custom_gradients
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.errors import UnsupportedOpError
from tests.capture.steps_of_both import Built, Cases, captured, check_steps
from tests.messages import raises

pytestmark = pytest.mark.tf
case = Cases()
v1 = tf.compat.v1


@tf.custom_gradient
def doubled_backwards(x):
    return tf.square(x), lambda upstream: 2.0 * upstream


def endless(depth_reached):
    """A custom gradient whose gradient is a custom gradient, and so on."""

    @tf.custom_gradient
    def apply(x):
        def gradient(upstream):
            depth_reached.append(len(depth_reached))
            return endless(depth_reached)(upstream)

        return tf.identity(x), gradient

    return apply


def gradient_of(function):
    return lambda x: Built({"gradient": tf.gradients(function(x), x)[0]})


@pytest.mark.parametrize(
    "build",
    [
        lambda x: tf.reduce_sum(doubled_backwards(x)),
        lambda x: tf.reduce_sum(doubled_backwards(doubled_backwards(3.0 * x))),
        lambda x: tf.reduce_sum(tf.recompute_grad(lambda y: tf.tanh(y) * y)(x)),
        lambda x: tf.reduce_sum(endless([])(x) ** 2),
    ],
)
def test_a_custom_gradient_is_what_tensorflow_uses(build):
    check_steps(gradient_of(build), [np.array([0.5, -1.5, 2.0], np.float32)], close=(1e-6, 0))


def test_only_what_is_differentiated_is_prepared():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2])
        reached = []
        with GradientRecorder() as recorder:
            (slope,) = tf.gradients(tf.reduce_sum(doubled_backwards(x)), x)
            endless(reached)(slope)
        custom = prepare_custom_gradients(graph, recorder)
        assert [op.inputs[0].op.type for op in custom] == ["Square"]
        assert reached == []
        assert len([op for op in graph.get_operations() if has_override(op)]) == 2


def in_a_branch(function):
    return lambda x: tf.reduce_sum(tf.cond(x[0] > 0, lambda: function(x) * 3.0, lambda: x))


@pytest.mark.parametrize("first", [0.5, -0.5])
def test_one_inside_a_branch_is_what_tensorflow_uses(first):
    x = np.array([first, 1.5, 2.0], np.float32)
    check_steps(gradient_of(in_a_branch(doubled_backwards)), [x], close=(1e-6, 0))
    called = tf.function(lambda y: doubled_backwards(y) + y)
    check_steps(gradient_of(in_a_branch(called)), [x], close=(1e-6, 0))


def test_one_inside_a_branch_that_reads_outer_tensors_is_refused():
    def build(x):
        factor = tf.reduce_max(x)

        @tf.custom_gradient
        def scaled(y):
            return tf.square(y), lambda upstream: factor * upstream

        return in_a_branch(scaled)(x)

    with raises(UnsupportedOpError, "tf.cond", "Received: 'IdentityN", "Pass them"):
        captured(gradient_of(build), np.array([0.5, 1.0], np.float32))


START = np.array([0.5, -1.0, 2.0], np.float32)
BATCHES = [(START[::-1] * sign,) for sign in (1.0, -0.5, 2.0)]


def trained(function):
    """Three steps of gradient descent on sum(function(x, w))."""

    def build(x):
        with v1.variable_scope("", use_resource=True):
            w = v1.get_variable("w", initializer=START)
        loss = tf.reduce_sum(function(x, w))
        by_x, by_w = tf.gradients(loss, [x, w])
        with tf.control_dependencies([loss, by_x]):
            update = v1.train.GradientDescentOptimizer(0.1).apply_gradients([(by_w, w)])
        return Built({"loss": loss, "by_x": by_x, "by_w": by_w}, [update])

    check_steps(build, *BATCHES)


def test_a_custom_gradient_gives_gradients_of_the_variables_it_reads():
    def function(x, w):
        @tf.custom_gradient
        def scaled(y):
            with v1.variable_scope("", reuse=True, use_resource=True):
                weight = v1.get_variable("w")

            def gradient(upstream, variables):
                assert [v.op.name for v in variables] == ["w"]
                return 3.0 * upstream, [-0.5 * upstream * y]

            return y * weight, gradient

        return scaled(tf.exp(0.1 * x))

    trained(function)


def test_custom_gradients_of_several_operands_use_what_the_forward_pass_made():
    @tf.custom_gradient
    def product(x, w):
        kept = tf.exp(0.1 * x * w)
        return (kept * x, kept), lambda dy, dkept: (dy * kept + dkept, 2.0 * dy * kept)

    trained(lambda x, w: tf.add_n(product(x, w)))


def test_an_operand_without_a_gradient_gets_none():
    @tf.custom_gradient
    def first(x, w):
        return x * w, lambda upstream: (upstream * w, None)

    trained(lambda x, w: first(x, w) + w * w)


def test_recomputed_blocks_train_their_variables():
    def function(x, w):
        block = tf.recompute_grad(lambda y: tf.tanh(y) * w.read_value())
        return block(block(x) + w)

    trained(function)


def scaled_weight():
    """(variable w, variable scale, function that assigns w * scale to w)."""
    with v1.variable_scope("", use_resource=True):
        w = v1.get_variable("w", initializer=START)
        scale = v1.get_variable("scale", initializer=np.float32(2.0))
    return w, scale, lambda: w.assign(w * scale)


@case(*BATCHES)
def gradients_of_a_recomputed_block_do_not_reach_what_was_assigned_before(x):
    w, scale, move = scaled_weight()
    moved = move()
    with tf.control_dependencies([moved]):
        y = tf.recompute_grad(lambda y: tf.tanh(y) * w.read_value() * scale)(tf.identity(x))
        gradients = tf.gradients(tf.reduce_sum(tf.sin(y)), [w, scale, x])
    return Built(dict(zip(["by_w", "by_scale", "by_x"], gradients)), [moved.op])


@case(*BATCHES)
def second_derivatives_by_a_variable_that_a_custom_gradient_reads_after_an_assignment(x):
    w, scale, move = scaled_weight()

    @tf.custom_gradient
    def times(y):
        def gradient(upstream, variables):
            (again,) = variables
            return 3.0 * upstream * again**2, [2.0 * upstream * y * again]

        return y * w.read_value(), gradient

    moved = move()
    with tf.control_dependencies([moved]):
        loss = tf.reduce_sum(tf.sin(times(tf.exp(0.1 * x) * scale)))
        first = tf.gradients(loss, [w, x])
        second = tf.gradients(tf.reduce_sum(first[0] ** 3 + first[1] ** 2), [w, scale, x])
    results = {f"slope_{i}": slope for i, slope in enumerate([*first, *second])}
    return Built(results, [moved.op])


def test_a_variable_that_a_custom_gradient_reads_must_not_be_assigned_before_it():
    def build(x):
        w, _, move = scaled_weight()
        y = tf.recompute_grad(lambda y: tf.tanh(y) * w.read_value())(x)
        with tf.control_dependencies([y]):
            moved = move()
        with tf.control_dependencies([moved]):
            (by_x,) = tf.gradients(y, x)
        return Built({"by_x": by_x}, [moved.op])

    with raises(UnsupportedOpError, "assignment of 'w'"):
        captured(build, *BATCHES[0])


@pytest.mark.parametrize(("build", "batches"), case)
def test_steps_are_those_of_tensorflow(build, batches):
    check_steps(build, *batches)
