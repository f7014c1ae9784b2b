"""Normalising ops: types, refusals, and gradients against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import Builder, lookup
from tests.messages import raises
from tests.ops.differences import check_vjp

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7)])
def test_softmax_gradients_are_the_derivatives(op, shape):
    check_vjp(op, [RANDOM.standard_normal(shape)])


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 8)])
def test_layer_norm_gradient_is_the_derivative(shape):
    width = shape[-1]
    gamma, beta = RANDOM.uniform(0.5, 2, width), RANDOM.standard_normal(width)
    check_vjp("layer_norm", [RANDOM.standard_normal(shape), gamma, beta], epsilon=1e-3)


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 8)])
def test_rms_norm_gradient_is_the_derivative(shape):
    gamma = RANDOM.uniform(0.5, 2, shape[-1])
    check_vjp("rms_norm", [RANDOM.standard_normal(shape), gamma], epsilon=1e-3)


def _inputs(*shapes):
    b = Builder(Graph())
    return b, [b.graph.add_input("x", TensorType("float32", shape)) for shape in shapes]


def test_layer_norm_gives_statistics_without_the_last_axis():
    b, (x, gamma, beta) = _inputs((2, None, 8), (8,), (8,))
    y, mean, rstd = b.multi("layer_norm", x, gamma, beta, epsilon=1e-5)
    assert y.type == x.type
    assert mean.shape == rstd.shape == (2, None)


@pytest.mark.parametrize("shape", [(7,), (1, 8), ()])
def test_layer_norm_refuses_another_width(shape):
    b, values = _inputs((2, 8), (8,), shape)
    with raises(GraphError, "layer_norm", "[8]"):
        b.multi("layer_norm", *values, epsilon=1e-5)


def test_statistics_of_layer_norm_must_not_be_differentiated():
    b, values = _inputs((2, 8), (8,), (8,))
    outputs = b.multi("layer_norm", *values, epsilon=1e-5)
    with pytest.raises(GraphError):
        lookup("layer_norm").vjp(b, outputs[0].node, [None, outputs[1], None])
    outputs = b.multi("rms_norm", *values[:2], epsilon=1e-5)
    with pytest.raises(GraphError):
        lookup("rms_norm").vjp(b, outputs[0].node, [None, outputs[1]])


@pytest.mark.parametrize("op", ["softmax_grad", "log_softmax_grad"])
def test_a_second_derivative_is_refused_rather_than_zero(op):
    b, (dy, y) = _inputs((2, 8), (2, 8))
    dx = b.op(op, dy, y)
    with pytest.raises(UnsupportedOpError, match=f"op {op}: must not be differentiated"):
        lookup(op).vjp(b, dx.node, [dy])
