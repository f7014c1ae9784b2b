"""Captured conditionals and calls against TensorFlow: values, gradients, assignments."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from tests.capture.steps_of_both import Built, Cases, check_steps

pytestmark = pytest.mark.tf
case, in_both_versions = Cases(), Cases()
v1 = tf.compat.v1


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def control_flow(request):
    """Runs a test with conditionals of both versions."""
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield
    v1.enable_control_flow_v2()


START = np.arange(1, 4, dtype=np.float32)
# Content of the placeholders in three steps: the first element decides, in both directions.
BATCHES = [(sign * np.array([1.0, -2.0, 3.0], np.float32),) for sign in (1, -1, 2)]


def check_function(function):
    """Compares steps of function(x, pred, total, count), whose last two operands are variables."""

    def build(x):
        total = tf.Variable(np.full(3, 2.0, np.float32), name="total")
        count = tf.Variable(np.float32(1.0), name="count")
        output = function(x, x[0] > 0.0, total, count)
        return Built({"output": output}, [output.op])

    check_steps(build, *BATCHES, close=(1e-6, 0))


def conditional_values(x, pred, total, count):
    return tf.cond(pred, lambda: x * 2.0, lambda: x - total)


def nested_values(x, pred, total, count):
    def inner():
        return tf.cond(x[0] > 0, lambda: tf.exp(x), lambda: x)

    return tf.cond(pred, inner, lambda: tf.cond(x[1] > 0, lambda: -x, lambda: x * x))


def one_sided_assignment(x, pred, total, count):
    def assign():
        with tf.control_dependencies([v1.assign_add(total, x)]):
            return tf.identity(x)

    return tf.cond(pred, assign, lambda: x * 3.0)


def assignments_of_different_variables(x, pred, total, count):
    def first():
        with tf.control_dependencies([v1.assign(total, x * 5.0)]):
            return total.read_value()

    def second():
        with tf.control_dependencies([v1.assign_sub(count, 0.5), v1.assign(total, -x)]):
            return count.read_value() + total.read_value()

    return tf.cond(pred, first, second)


def assignments_of_a_called_function(x, pred, total, count):
    @tf.function
    def called(y):
        total.assign_add(y)
        tf.cond(y[0] > 0.0, lambda: count.assign_add(2.0), lambda: count.assign(0.0))
        return total.read_value()

    return tf.cond(pred, lambda: called(x), lambda: x * 3.0)


def called_function(x, pred, total, count):
    @tf.function
    def called(y):
        total.assign_add(y)
        count.assign(tf.reduce_sum(total))
        return y * count

    return called(x) + 1.0


@pytest.mark.parametrize(
    "function",
    [
        assignments_of_a_called_function,
        called_function,
        conditional_values,
        nested_values,
        one_sided_assignment,
        assignments_of_different_variables,
    ],
)
def test_conditionals_and_calls_return_and_assign_what_tensorflow_does(control_flow, function):
    check_function(function)


@in_both_versions(*BATCHES)
def branches_draw_random_numbers_as_tensorflow_does(x):
    """The branch not taken draws nothing; numbers of a step depend on the step alone."""
    y = tf.cond(
        x[0] > -9.0,
        lambda: x + v1.random_uniform([3], seed=4),
        lambda: x * v1.random_uniform([3], seed=5),
    )
    return Built({"y": y})


@in_both_versions(*BATCHES)
def gradients_pass_through_nested_conditionals(x):
    w = tf.Variable(START)

    def inner():
        return tf.cond(x[2] > 3.5, lambda: tf.exp(-w), lambda: w * w * x)

    loss = tf.reduce_sum(tf.cond(x[0] > 0, inner, lambda: tf.sin(w) * x))
    by_w, by_x = tf.gradients(loss, [w, x])
    return Built({"w": by_w, "x": by_x})


def test_a_guarded_optimizer_step_moves_slots_and_weights_or_neither(control_flow):
    def build(x):
        w, good = tf.Variable(START, name="w"), tf.Variable(0, trainable=False, name="good")
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        pairs = optimizer.compute_gradients(tf.reduce_sum(tf.square(w) * x), [w])

        def apply():
            with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
                return tf.group(good.assign_add(1))

        def skip():
            return tf.group(good.assign(0))

        return Built({}, [tf.cond(x[0] > 0, apply, skip)])

    step = check_steps(build, *BATCHES)
    assert set(step.updates) == {"w", "w/Momentum", "good"}


@in_both_versions(*BATCHES)
def inner_conditionals_assign_under_both_conditions(x):
    w = tf.Variable(START, name="w")

    def inner():
        return tf.cond(x[1] < -3.0, lambda: w.assign(2.0 * w).op, lambda: w.assign_sub(x).op)

    return Built({}, [tf.cond(x[0] > 0, inner, lambda: w.assign_add(x).op)])


@in_both_versions(*BATCHES)
def a_case_takes_the_first_condition_that_holds(x):
    w = tf.Variable(START)
    y = tf.case(
        [(x[0] < 0.0, lambda: x - w), (x[0] < 1.5, lambda: x * w)], default=lambda: tf.exp(x)
    )
    return Built({"y": y})


def test_a_function_called_twice_reads_what_its_first_call_assigned():
    @tf.function
    def grow(variable, by):
        variable.assign_add(by)
        return tf.reduce_sum(variable) * by

    def build(x):
        w = tf.Variable(START)
        first = grow(w, x)
        with tf.control_dependencies([first]):
            second = grow(w, first)
        return Built({"first": first, "second": second})

    check_steps(build, *BATCHES)


def test_gradients_pass_through_functions_that_call_functions():
    @tf.function
    def inner(x, w):
        return tf.exp(-x * w)

    @tf.function
    def outer(x, w):
        return tf.square(inner(x, w)) + inner(w, x)

    def build(x):
        w = tf.Variable(START)
        (gradient,) = tf.gradients(tf.reduce_sum(outer(x, w.read_value())), [w])
        return Built({"gradient": gradient})

    check_steps(build, *BATCHES)


@case(*BATCHES)
def dropout_of_a_keras_layer_is_tensorflows(x):
    layer = tf.keras.layers.Dropout(0.5, seed=3)
    tf.compat.v1.set_random_seed(5)
    return Built({"y": layer(tf.tile(x, [20]), training=True)})


@pytest.mark.parametrize(("build", "batches"), case)
def test_steps_are_those_of_tensorflow(build, batches):
    check_steps(build, *batches)


@pytest.mark.parametrize(("build", "batches"), in_both_versions)
def test_steps_with_conditionals_are_those_of_tensorflow(control_flow, build, batches):
    check_steps(build, *batches)
