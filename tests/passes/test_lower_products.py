"""Products take operands in bfloat16 where that pays, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import parse_type, verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.lower_products import lower_products
from tests.graphs import graph_of, random_inputs, run_plain

LARGE = ("float32[128,128]", "float32[128,128]")


def lowered(graph, **options):
    """Which nodes of a graph the pass lowers."""
    lower_products(graph, **options)
    verify(graph, infer)
    return [node.op for node in graph.nodes if node.attrs.get("compute") == "bfloat16"]


def product(b, x, w):
    return b.op("matmul", x, w, transpose_a=False, transpose_b=False)


def test_a_large_product_is_lowered_once_and_changes_by_rounding_only():
    graph = graph_of(product, *LARGE)
    arrays = random_inputs(graph)
    (before,) = run_plain(graph, arrays)
    assert lowered(graph) == ["matmul"]
    (after,) = run_plain(graph, arrays)
    assert 1e-4 < np.linalg.norm(after - before) / np.linalg.norm(before) < 5e-3
    assert lowered(graph) == ["matmul"]


@pytest.mark.parametrize(
    "types",
    [
        ("float32[128,8]", "float32[8,4096]"),  # a size below 16
        ("float32[4096,128]", "float32[128,8]"),
        ("float32[32,32]", "float32[32,32]"),  # too little work
        ("float64[128,128]", "float64[128,128]"),
        ("float16[128,128]", "float16[128,128]"),
        ("float32[?,128]", "float32[128,128]"),  # nothing is known of its rows
        ("float32[64,8,128]", "float32[64,128,128]"),  # small products, many of them
    ],
)
def test_other_products_stay(types):
    assert lowered(graph_of(product, *types)) == []


@pytest.mark.parametrize("rows", ["8,16", "S<=128"])
def test_rows_of_all_leading_dimensions_count(rows):
    assert lowered(graph_of(product, f"float32[{rows},128]", LARGE[1])) == ["matmul"]


def test_loss_and_its_gradient_are_lowered():
    def build(b, dloss, h, w, labels):
        return b.multi("linear_softmax_xent_train", dloss, h, w, labels, transpose_weight=True)[0]

    types = ("float32[64]", "float32[64,64]", "float32[512,64]", "int32[64]")
    assert lowered(graph_of(build, *types)) == ["linear_softmax_xent_train"]


def test_a_product_that_chooses_stays_and_one_behind_the_choice_does_not():
    def build(b, x, w, table):
        hidden = product(b, x, w)
        best = b.op("argmax", b.op("neg", product(b, hidden, w)), axis=1, dtype="int64")
        return b.op("gather", table, best, axis=0, batch_dims=0), product(b, hidden, w)

    graph = graph_of(build, *LARGE, "float32[128,4]")
    assert lowered(graph) == ["matmul", "matmul"]
    first, deciding, last = (n for n in graph.nodes if n.op == "matmul")
    assert "compute" not in deciding.attrs
    assert first.attrs["compute"] == last.attrs["compute"] == "bfloat16"


def test_operations_that_are_named_stay():
    def build(b, x, w):
        b.source = "decoder_1/router/MatMul"
        y = product(b, x, w)
        b.source = "decoder_1/ffn/MatMul"
        return product(b, y, w)

    graph = graph_of(build, *LARGE)
    assert len(lowered(graph, keep_float32=["router/"])) == 1
    assert "compute" not in graph.nodes[0].attrs


def test_products_in_branches_are_lowered():
    inner = graph_of(product, *LARGE)
    nothing = graph_of(lambda b, x, w: b.op("neg", x), *LARGE)

    def build(b, which, x, w):
        return b.multi("cond", which, x, w, then=inner, orelse=nothing)[0]

    lower_products(graph_of(build, "bool[]", *LARGE))
    assert inner.nodes[0].attrs["compute"] == "bfloat16"


def test_types_stay_float32():
    graph = graph_of(product, *LARGE)
    lower_products(graph)
    assert graph.nodes[0].output.type == parse_type(LARGE[0])
