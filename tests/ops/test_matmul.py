"""matmul: types, cost, and its gradient against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import Builder, lookup
from tests.ops.differences import check_vjp

TRANSPOSES = [(False, False), (True, False), (False, True), (True, True)]


def _swapped(shape, transpose):
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else shape


@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 5), (5, 3)),
        ((2, 4, 5), (2, 5, 3)),
        ((2, 4, 5), (5, 3)),
        ((4, 5), (2, 5, 3)),
        ((3, 1, 4, 5), (2, 5, 3)),
    ],
)
@pytest.mark.parametrize(("first", "second"), TRANSPOSES)
def test_gradient_is_the_derivative_for_all_transposes_and_broadcasts(shapes, first, second):
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(_swapped(s, t)) for s, t in zip(shapes, (first, second))]
    check_vjp("matmul", arrays, transpose_a=first, transpose_b=second)


@pytest.mark.parametrize(
    ("first", "second", "attrs", "fits"),
    [
        ("float32", "bfloat16", {"compute": "bfloat16"}, True),
        ("bfloat16", "bfloat16", {"compute": "bfloat16"}, True),
        ("float32", "float16", {"compute": "bfloat16"}, False),
        ("float32", "bfloat16", {}, False),
    ],
)
def test_operands_may_rest_in_bfloat16_where_products_are_of_it(first, second, attrs, fits):
    builder = Builder(Graph())
    values = [builder.graph.add_input("x", TensorType(t, (4, 4))) for t in (first, second)]
    attrs = {**attrs, "transpose_a": False, "transpose_b": False}
    if fits:
        assert builder.op("matmul", *values, **attrs).dtype == "float32"
    else:
        with pytest.raises(GraphError):
            builder.op("matmul", *values, **attrs)


def _operands(a, b):
    builder = Builder(Graph())
    values = [builder.graph.add_input(n, TensorType("float32", s)) for n, s in (("a", a), ("b", b))]
    return builder, values


def test_types_follow_transposes_and_unknown_dimensions():
    b, (x, y) = _operands((None, 7, 3), (5, 7))
    z = b.op("matmul", x, y, transpose_a=True, transpose_b=True)
    assert z.type == TensorType("float32", (None, 3, 5))


@pytest.mark.parametrize(
    ("first", "second"), [((3, 4), (5, 6)), ((4,), (4, 5)), ((2, 3, 4), (3, 4, 5))]
)
def test_operands_that_do_not_fit_are_refused(first, second):
    b, values = _operands(first, second)
    with pytest.raises(GraphError):
        b.op("matmul", *values)


def test_flops_count_two_for_a_multiplication_and_addition():
    b, values = _operands((2, 3, 4), (4, 5))
    assert lookup("matmul").flops(b.op("matmul", *values).node) == 2 * 2 * 3 * 4 * 5


def test_weight_gradient_of_a_batch_is_one_product_of_matrices():
    b, (x, w) = _operands((2, 3, 4), (4, 5))
    z = b.op("matmul", x, w)
    dz = b.graph.add_input("dz", z.type)
    _, dw = lookup("matmul").vjp(b, z.node, [dz])
    assert dw.node.op == "matmul"
    assert [value.shape for value in dw.node.inputs] == [(6, 4), (6, 5)]
    assert not any(node.op == "sum" for node in b.graph.nodes)


def test_gradient_allows_an_unknown_batch():
    b, (x, w) = _operands((None, 3, 4), (5, 4))
    z = b.op("matmul", x, w, transpose_b=True)
    dz = b.graph.add_input("dz", z.type)
    dx, dw = lookup("matmul").vjp(b, z.node, [dz])
    assert dx.type == x.type
    assert dw.type == w.type
