"""Checks which functions with gradients of their own are prepared, and what that gives."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.custom_gradients import overridden, prepare_custom_gradients
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import TensorType
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import run_plain

pytestmark = pytest.mark.tf
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


def gradient_of(build, x_content):
    """d build(x) / d x by TensorFlow and through the capture."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, x_content.shape, "x")
        with GradientRecorder() as recorder:
            (slope,) = tf.gradients(build(x), x)
        custom = prepare_custom_gradients(graph, recorder)
        types = {x: TensorType("float32", x_content.shape)}
        capture = Capture({}, types, recorder.calls, evaluate, custom)
        step = capture.run({"slope": slope})
        with v1.Session() as session:
            expected = session.run(slope, {x: x_content})
    differentiate(step.graph, evaluate)
    operands = {"x:0": x_content}
    (found,) = run_plain(step.graph, [operands[value.name] for value in step.graph.inputs])
    return expected, found


@pytest.mark.parametrize(
    "build",
    [
        lambda x: tf.reduce_sum(doubled_backwards(x)),
        lambda x: tf.reduce_sum(doubled_backwards(doubled_backwards(3.0 * x))),
        lambda x: tf.reduce_sum(tf.recompute_grad(lambda y: tf.tanh(y) * y)(x)),
        lambda x: tf.reduce_sum(endless([])(x) ** 2),
    ],
)
def test_a_gradient_of_its_own_is_what_tensorflow_uses(build):
    expected, found = gradient_of(build, np.array([0.5, -1.5, 2.0], np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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
        assert len([op for op in graph.get_operations() if overridden(op)]) == 2


def test_one_inside_a_branch_is_refused_rather_than_differentiated_as_an_identity():
    def build(x):
        return tf.reduce_sum(tf.cond(x[0] > 0, lambda: doubled_backwards(x), lambda: x))

    with pytest.raises(UnsupportedOpError, match="must not be inside tf.cond or tf.function"):
        gradient_of(build, np.array([0.5, 1.0], np.float32))
