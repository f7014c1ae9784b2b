"""Products in bfloat16 that share an operand, or are summed, become one node."""

from __future__ import annotations

import pytest

from cerebras_tf.passes.group_products import group_products
from tests.graphs import check_pass, graph_of

SQUARES = ["float32[32,32]"] * 4


def product(b, x, w, **attrs):
    turned = {"transpose_a": False, "transpose_b": False}
    return b.op("matmul", x, w, **{"compute": "bfloat16", **turned, **attrs})


FORMS = {
    "one left operand": (
        lambda b, x, u, v, w: [product(b, x, y) for y in (u, v, w)],
        ["grouped_matmul"],
    ),
    "one right operand": (
        lambda b, x, u, v, w: [product(b, y, x, transpose_a=True) for y in (u, v, w)],
        ["grouped_matmul"],
    ),
    "a sum": (
        lambda b, x, u, v, w: b.op(
            "add", product(b, v, w), b.op("add", product(b, x, u), product(b, u, u))
        ),
        ["grouped_matmul"],
    ),
    "a sum whose operands other products read": (
        lambda b, x, u, v, w: [
            *(product(b, y, w, transpose_a=True) for y in (x, u)),
            b.op("add", product(b, x, v), product(b, u, v)),
        ],
        ["grouped_matmul", "grouped_matmul"],
    ),
    "a product that depends on another": (
        lambda b, x, u, v, w: product(b, x, b.op("neg", product(b, x, u))),
        ["matmul", "neg", "matmul"],
    ),
    "a part of a sum that is read elsewhere": (
        lambda b, x, u, v, w: [b.op("add", y := product(b, x, u), product(b, v, w)), y],
        ["matmul", "matmul", "add"],
    ),
    "other transposes": (
        lambda b, x, u, v, w: [product(b, x, u), product(b, x, v, transpose_b=True)],
        ["matmul", "matmul"],
    ),
    "float32": (
        lambda b, x, u, v, w: [product(b, x, y, compute=None) for y in (u, v, w)],
        ["matmul"] * 3,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_products_are_grouped_where_they_share_work(form):
    build, expected = FORMS[form]
    assert check_pass(graph_of(build, *SQUARES), group_products) == expected


def test_products_of_other_layers_stay():
    graph = graph_of(FORMS["one left operand"][0], *SQUARES)
    graph.nodes[0].layer = 1
    assert check_pass(graph, group_products) == ["matmul", "grouped_matmul"]
