"""Parity of softmax, layer norm and batch norm with TensorFlow, forward and gradient."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from cerebras_tf.capture.capture import Capture
from cerebras_tf.ir import TensorType
from cerebras_tf.kernels.registry import evaluate
from tests.graphs import run_plain
from tests.parity.harness import assert_close, check_parity, normal, oracle_session, uniform
from tests.tolerances import TOLERANCES

pytestmark = pytest.mark.tf
EPSILON = 1e-3


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7), (1, 1), (4, 300)])
@pytest.mark.parametrize("function", ["softmax", "log_softmax"])
def test_softmax_agrees_with_tensorflow(function, shape):
    inputs = [normal(*shape, scale=3.0)]
    check_parity(lambda x: getattr(tf.nn, function)(x[0]), inputs, "normalization")


@pytest.mark.parametrize("function", ["softmax", "log_softmax"])
def test_softmax_of_large_and_masked_logits_agrees_with_tensorflow(function):
    logits = np.array([[1e4, -1e4, 0.0], [-1e9, 0.0, 1.0], [88.0, 89.0, 90.0]], np.float32)
    check_parity(lambda x: getattr(tf.nn, function)(x[0]), [logits], "normalization")


def test_softmax_over_another_axis_agrees_with_tensorflow():
    inputs = [normal(3, 4, 5)]
    check_parity(lambda x: tf.nn.softmax(x[0], axis=1), inputs, "normalization")


@pytest.mark.parametrize("radius", [1, 2, 5])
def test_local_response_normalization_agrees_with_tensorflow(radius):
    def build(x):
        return tf.nn.lrn(x[0], depth_radius=radius, bias=1.5, alpha=0.3, beta=0.75)

    check_parity(build, [normal(2, 3, 3, 8)], "normalization")


def _layer_norm(x, gamma, beta):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON) * gamma + beta


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 16)])
def test_layer_norm_kernels_agree_with_tensorflows_composition(shape):
    x, gamma, beta = normal(*shape), uniform(shape[-1]), normal(shape[-1], seed=1)
    dy = normal(*shape, seed=2)
    with tf.Graph().as_default(), oracle_session() as session:
        operands = [tf.constant(array) for array in (x, gamma, beta)]
        expected = _layer_norm(*operands)
        wanted, grads = session.run([expected, tf.gradients(expected, operands, tf.constant(dy))])
    y, mean, rstd = evaluate("layer_norm", [x, gamma, beta], {"epsilon": EPSILON})
    assert_close(y, wanted, TOLERANCES["normalization"], "y")
    found = evaluate("layer_norm_grad", [dy, x, gamma, mean, rstd], {})
    for ours, theirs in zip(found, grads):
        assert_close(ours, theirs, TOLERANCES["gradient"], "gradient")


def test_layer_norm_written_with_moments_agrees_with_tensorflow():
    inputs = [normal(2, 5, 16), uniform(16), normal(16, seed=1)]
    check_parity(lambda x: _layer_norm(*x), inputs, "normalization")


LAYOUTS = [("NHWC", (4, 3, 5, 6), 6), ("NCHW", (4, 6, 3, 5), 6)]
VERSIONS = ["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"]


def _batch_norm(op_type, layout, training, **more):
    """y, batch mean and batch variance."""

    def build(x):
        op = getattr(tf.raw_ops, op_type)
        attrs = {"epsilon": EPSILON, "data_format": layout, "is_training": training, **more}
        operands = dict(zip(("x", "scale", "offset", "mean", "variance"), x))
        if training and len(x) == 3:
            operands.update(mean=tf.constant([]), variance=tf.constant([]))
        return list(op(**operands, **attrs))[:3]

    return build


@pytest.mark.parametrize("op_type", VERSIONS)
def test_batch_norm_in_training_agrees_with_tensorflow(op_type):
    inputs = [normal(4, 3, 5, 6) + 2.0, uniform(6), normal(6, seed=1)]
    check_parity(_batch_norm(op_type, "NHWC", True), inputs, "normalization", gradient=False)


def test_gradient_of_batch_norm_in_training_agrees_with_tensorflow():
    inputs = [normal(4, 3, 5, 6) + 2.0, uniform(6), normal(6, seed=1)]
    build = _batch_norm("FusedBatchNormV3", "NHWC", True)
    check_parity(lambda x: build(x)[0], inputs, "normalization")


@pytest.mark.parametrize("op_type", VERSIONS)
def test_batch_norm_in_inference_agrees_with_tensorflow(op_type):
    inputs = [normal(4, 3, 5, 6), uniform(6), normal(6, seed=1), normal(6, seed=2), uniform(6)]
    build = _batch_norm(op_type, "NHWC", False)
    check_parity(lambda x: build(x)[0], inputs, "normalization")


def test_batch_norm_moves_running_statistics_as_tensorflow_does():
    inputs = [normal(4, 3, 5, 6), uniform(6), normal(6, seed=1), normal(6, seed=2), uniform(6)]
    build = _batch_norm("FusedBatchNormV3", "NHWC", True, exponential_avg_factor=0.1)
    check_parity(build, inputs, "normalization", gradient=False)


def test_batch_norm_of_one_row_a_channel_has_no_infinite_variance():
    inputs = [normal(1, 1, 1, 6), uniform(6), normal(6, seed=1)]
    build = _batch_norm("FusedBatchNormV3", "NHWC", True)
    check_parity(build, inputs, "normalization", gradient=False)


@pytest.mark.parametrize("training", [True, False])
def test_channels_first_batch_norm_equals_channels_last(training):
    """TensorFlow's CPU kernels train channels-last only: the oracle is the transposed input."""
    x, scale, offset = normal(4, 3, 5, 6), uniform(6), normal(6, seed=1)
    statistics = [] if training else [normal(6, seed=2), uniform(6)]
    _check_against_transposed(training, [x, scale, offset, *statistics])


def _check_against_transposed(training, inputs):
    results = []
    for layout in ("NHWC", "NCHW"):
        x = inputs[0] if layout == "NHWC" else inputs[0].transpose(0, 3, 1, 2)
        arrays = [x, *inputs[1:]]
        with tf.Graph().as_default():
            placeholders = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
            types = {p: TensorType("float32", a.shape) for p, a in zip(placeholders, arrays)}
            y, mean, variance = _batch_norm("FusedBatchNormV3", layout, training)(placeholders)
            step = Capture({}, types).run({"y": y, "m": mean, "v": variance})
        order = {p.name: a for p, a in zip(placeholders, arrays)}
        results.append(run_plain(step.graph, [order[v.name] for v in step.graph.inputs]))
    last, first = results
    assert_close(first[0].transpose(0, 2, 3, 1), last[0], TOLERANCES["normalization"], "y")
    for ours, theirs in zip(first[1:], last[1:]):
        assert_close(ours, theirs, TOLERANCES["normalization"], "statistics")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("op_type", ["FusedBatchNormGrad", "FusedBatchNormGradV3"])
def test_batch_norm_grad_agrees_with_tensorflow(op_type, training):
    def build(x):
        more = {"reserve_space_3": tf.constant([])} if op_type.endswith("V3") else {}
        outputs = getattr(tf.raw_ops, op_type)(
            y_backprop=x[0],
            x=x[1],
            scale=x[2],
            reserve_space_1=x[3],
            reserve_space_2=x[4],
            epsilon=EPSILON,
            is_training=training,
            **more,
        )
        return list(outputs)[:3]

    x = normal(4, 3, 5, 6)
    statistics = [x.mean((0, 1, 2)), x.var((0, 1, 2))]
    inputs = [normal(4, 3, 5, 6, seed=1), x, uniform(6), *statistics]
    check_parity(build, inputs, "normalization", gradient=False)
