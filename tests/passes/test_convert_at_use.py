"""Weights stored in 16 bits are converted where they are used, or read as they are."""

from __future__ import annotations

import pytest

from cerebras_tf.passes.convert_at_use import convert_at_use
from cerebras_tf.passes.lower_products import lower_products
from tests.graphs import check_pass, graph_of, ops_of


def product(b, x, w):
    return b.op("matmul", x, w, transpose_a=False, transpose_b=True)


def model(b, table, w, norm, tokens):
    """Rows of a table, a product, a norm's weight in two layers."""
    table, w, norm = (b.op("cast", x, dtype="float32") for x in (table, w, norm))
    rows = b.op("gather", table, tokens, axis=0, batch_dims=0)
    b.layer, b.direction = 0, "forward"
    first = b.op("mul", product(b, rows, w), norm)
    b.layer = 1
    return b.op("mul", product(b, first, w), norm)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("lowered", [False, True])
def test_only_what_needs_float32_reads_a_cast_of_its_layer(dtype, lowered):
    types = (f"{dtype}[300,256]", f"{dtype}[256,256]", f"{dtype}[256]", "int32[128]")
    graph = graph_of(model, *types)
    if lowered:
        lower_products(graph)
    # The plain kernels take bfloat16 as float32.
    check_pass(graph, convert_at_use)
    direct = lowered and dtype == "bfloat16"
    assert ops_of(graph).count("cast") == 1 + 2 + (0 if direct else 2)
    table, weight, norm, _ = graph.inputs
    for node in graph.nodes:
        if node.op == "gather":
            assert node.inputs[0] is table
        elif node.op == "matmul":
            assert (node.inputs[1] is weight) == direct
        elif node.op == "cast" and node.inputs[0] in (weight, norm):
            assert node.layer == graph.users()[node.output][0].layer


def test_what_is_computed_is_converted_once():
    def build(b, x):
        y = b.op("cast", b.op("cast", b.op("tanh", x), dtype="bfloat16"), dtype="float32")
        return b.op("mul", b.op("exp", y), y)

    graph = graph_of(build, "float32[4]")
    before = ops_of(graph)
    convert_at_use(graph)
    assert ops_of(graph) == before
