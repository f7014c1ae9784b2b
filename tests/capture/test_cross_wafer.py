"""Sums over wafers have their gradient in TensorFlow's own backward graph, as in ours."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from cerebras_tf import cross_wafer_sum
from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.custom_gradients import prepare_custom_gradients
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.ir import TensorType
from cerebras_tf.passes.differentiate import differentiate

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
X = np.array([1.0, 2.0, -2.5], np.float32)


def loss_of(x):
    return cross_wafer_sum(tf.reduce_sum(tf.square(x))) / cross_wafer_sum(tf.reduce_sum(x))


def by_graph(x):
    return tf.gradients(loss_of(x), x)[0]


def by_tape(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = loss_of(x)
    return tape.gradient(loss, x)


@pytest.mark.parametrize("gradient", [by_graph, by_tape])
@pytest.mark.parametrize("whole", [False, True])
def test_gradients_of_sums_over_wafers_are_summed_over_wafers(gradient, whole):
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, X.shape, "x")
        with GradientRecorder() as recorder:
            slope = gradient(x)
        custom = prepare_custom_gradients(graph, recorder)
        calls = ((), recorder.calls) if whole else (recorder.calls, ())
        types = {x: TensorType("float32", X.shape)}
        capture = Capture({}, types, calls[0], custom, tf_gradients=calls[1])
        step = capture.run({"slope": slope})
        with v1.Session() as session:  # on the host both are the identity
            found = session.run(slope, {x: X})
    differentiate(step.graph)
    ops = [node.op for node in step.graph.nodes]
    assert ops.count("wafer_sum") == 4  # costs and count, and the cotangents of both
    np.testing.assert_allclose(found, 2 * X / X.sum() - np.sum(X**2) / X.sum() ** 2, rtol=1e-6)


def test_a_sum_over_wafers_has_a_custom_gradient_on_the_host_and_eagerly():
    assert float(by_tape(tf.constant(X))[0]) == pytest.approx(
        float(2 * X[0] / X.sum() - np.sum(X**2) / X.sum() ** 2)
    )
