"""Elementwise ops: types, and gradient rules against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import OPS, Builder, lookup
from tests.messages import raises
from tests.ops.differences import check_vjp

RANDOM = np.random.default_rng(3)
ANYWHERE = RANDOM.uniform(-2, 2, (3, 5))
POSITIVE = RANDOM.uniform(0.2, 2, (3, 5))
# Where each op with a gradient is differentiated; others take ANYWHERE.
DOMAINS = {
    **dict.fromkeys(("log", "log1p", "sqrt", "rsqrt", "reciprocal"), POSITIVE),
    **dict.fromkeys(("asin", "acos", "atanh"), ANYWHERE / 2.5),
    "acosh": POSITIVE + 1.5,
    "tan": ANYWHERE / 2,
}
ELEMENTWISE = [
    name
    for name, op in OPS.items()
    if op.family == "elementwise" and op.vjp is not None and name not in ("select", "cast")
]
BINARY = ["add", "atan2", "div", "div_no_nan", "floor_mod", "maximum", "minimum", "mul", "pow"]
BINARY += ["squared_difference", "sub"]
UNARY = sorted(set(ELEMENTWISE) - set(BINARY) - {"stop_gradient"})


def test_the_lists_below_cover_the_family():
    assert set(BINARY) <= set(ELEMENTWISE)
    assert len(UNARY) >= 25


@pytest.mark.parametrize("op", UNARY)
def test_unary_gradient_is_the_derivative(op):
    check_vjp(op, [DOMAINS.get(op, ANYWHERE)])


@pytest.mark.parametrize("shapes", [((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 1), (2, 1, 5))])
@pytest.mark.parametrize("op", BINARY)
def test_binary_gradient_is_the_derivative_summed_over_broadcast_axes(op, shapes):
    check_vjp(op, [RANDOM.uniform(0.3, 2, shape) for shape in shapes])


def test_select_passes_the_gradient_to_what_was_chosen():
    condition = RANDOM.uniform(size=(3, 5)) > 0.5
    check_vjp("select", [condition, ANYWHERE, POSITIVE[0]])


def test_stop_gradient_gives_none():
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float32", (3,)))
    node = b.op("stop_gradient", x).node
    assert lookup("stop_gradient").vjp(b, node, [x]) == [None]


def test_cast_sends_the_gradient_back_in_the_operands_dtype():
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float16", (3,)))
    y = b.op("cast", x, dtype="float32")
    (dx,) = lookup("cast").vjp(b, y.node, [y])
    assert dx.type == x.type


@pytest.mark.parametrize("op", ["less", "equal", "greater_equal"])
def test_comparisons_are_bool_and_have_no_derivative(op):
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float32", (3, 1)))
    y = b.graph.add_input("y", TensorType("float32", (1, None)))
    assert b.op(op, x, y).type == TensorType("bool", (3, None))
    assert not lookup(op).differentiable


def test_shapes_that_do_not_broadcast_are_named():
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float32", (3,)))
    y = b.graph.add_input("y", TensorType("float32", (4,)))
    with raises(GraphError, "(3,)", "(4,)"):
        b.op("add", x, y)


def test_ops_without_a_derivative_belong_to_this_family_too():
    assert {OPS[name].family for name in ("sign", "less", "floor_div", "is_nan")} == {"elementwise"}
