"""Compares captured conditionals and calls with TensorFlow: values, gradients, assignments."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.variables import managed_variables, variable_spec
from cerebras_tf.ir import TensorType
from cerebras_tf.kernels.registry import evaluate
from tests.graphs import run_plain

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def control_flow(request):
    """Runs a test with conditionals of both versions."""
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield
    v1.enable_control_flow_v2()


def both(build, flag):
    """[output, total, count afterwards] by TensorFlow and through the capture."""
    with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=True):
        x = v1.placeholder(tf.float32, [3], "x")
        pred = v1.placeholder(tf.bool, [], "pred")
        total = v1.get_variable("total", initializer=np.full(3, 2.0, np.float32))
        count = v1.get_variable("count", initializer=np.float32(1.0))
        output = build(x, pred, total, count)
        handles = {op: variable_spec(v) for op, v in managed_variables(graph).items()}
        types = {x: TensorType("float32", (3,)), pred: TensorType("bool", ())}
        step = Capture(handles, types, evaluate=evaluate).run({"output": output}, [output.op])
        content = np.array([1.0, -2.0, 3.0], np.float32)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            expected = [session.run(output, {x: content, pred: flag}), *session.run([total, count])]
    arrays = {"x:0": content, "pred:0": np.array(flag)}
    arrays.update(total=np.full(3, 2.0, np.float32), count=np.array(1.0, np.float32))
    given = [arrays[value.name] for value in step.graph.inputs]
    values = dict(zip(step.graph.outputs, run_plain(step.graph, given)))
    found = [values[step.results["output"]]]
    for name in ("total", "count"):
        update = step.updates.get(name)
        found.append(arrays[name] if update is None else values[update])
    return expected, found


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


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        conditional_values,
        nested_values,
        one_sided_assignment,
        assignments_of_different_variables,
    ],
)
def test_conditional_gives_and_assigns_what_tensorflow_does(control_flow, build, flag):
    expected, found = both(build, flag)
    for theirs, ours in zip(expected, found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_called_functions_assign_and_return_what_tensorflow_does():
    def build(x, pred, total, count):
        @tf.function
        def called(y):
            total.assign_add(y)
            count.assign(tf.reduce_sum(total))
            return y * count

        return called(x) + 1.0

    expected, found = both(build, True)
    for theirs, ours in zip(expected, found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
