"""Products take operands in bfloat16 where that pays, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import parse_type, verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.lower_products import check_kept, lower_products
from tests.graphs import graph_of, random_inputs, run_plain
from tests.messages import raises

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


def attention(b, q, k, v, *ends):
    attrs = {"scale": 0.1, "causal": True}
    if not ends:
        return b.multi("attention", q, k, v, **attrs)[0]
    return b.multi("packed_attention", q, k, v, *ends, lengths=(128, 128), **attrs)[0]


@pytest.mark.parametrize(
    ("types", "count"),
    [
        (["float32[2,128,4,32]"] * 3, 1),
        (["float32[2,S<=128,4,32]"] * 3, 1),
        (["float32[256,4,32]"] * 3 + ["int32[3]"] * 2, 1),
        (["float32[2,1,4,32]"] + ["float32[2,4096,4,32]"] * 2, 0),  # a single query
        (["float32[2,256,4,8]"] * 3, 0),
    ],
)
def test_attention_is_lowered_unless_float32_is_chosen(types, count):
    assert len(lowered(graph_of(attention, *types))) == count
    assert lowered(graph_of(attention, *types), attention=False) == []


def test_attention_and_its_gradient_stay_where_their_name_is_kept():
    def build(b, q, k, v):
        b.source = "decoder_1/attention/MatMul"
        y = attention(b, q, k, v)
        return b.multi("attention_grad", y, q, k, v, *y.node.outputs, **y.node.attrs)[0]

    graph = graph_of(build, *["float32[2,128,4,32]"] * 3)
    check_kept(graph, ["attention/"])
    assert lowered(graph, keep_float32=["attention/"]) == []
    assert lowered(graph) == ["attention", "attention_grad"]


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


def test_a_pattern_that_names_no_product_is_refused():
    def build(b, x, w):
        b.source = "decoder_1/router/MatMul"
        y = product(b, x, w)
        b.source = "decoder_1/tanh"
        return b.op("tanh", y)

    graph = graph_of(build, *LARGE)
    check_kept(graph, ["router/", "decoder_[0-9]/router"])
    with raises(ConfigError, "'tanh'", "decoder_1/router/M"):
        check_kept(graph, ["router/", "tanh"])
    inner = graph_of(build, *LARGE)
    nothing = graph_of(lambda b, x, w: b.op("neg", x), *LARGE)

    def choose(b, which, x, w):
        return b.multi("cond", which, x, w, then=inner, orelse=nothing)[0]

    check_kept(graph_of(choose, "bool[]", *LARGE), ["router"])


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


def decided_by_comparison(b, x, w):
    """Numbers of the places where a product is large."""
    return b.op("where_indices", b.op("greater", product(b, x, w), 0.5))


def counted_by_comparison(b, x, w):
    large = b.op("cast", b.op("greater", product(b, x, w), 0.5), dtype="int32")
    return b.op("cumsum", large, axis=1, exclusive=False, reverse=False)


def chosen_by_comparison(b, x, w):
    y = b.op("select", b.op("greater", product(b, x, w), 0.5), x, 0.0)
    return b.op("argmax", y, axis=1, dtype="int64")


@pytest.mark.parametrize(
    "build", [decided_by_comparison, counted_by_comparison, chosen_by_comparison]
)
def test_a_product_that_chooses_by_a_comparison_stays(build):
    assert lowered(graph_of(build, *LARGE)) == []


def test_products_that_are_asked_only_whether_they_are_finite_are_lowered():
    """As a loss scale asks of gradients, before it counts a step."""

    def build(b, x, w):
        finite = b.op("all", b.op("is_finite", product(b, x, w)), axes=(0, 1), keepdims=False)
        return b.op("select", finite, b.constant(1, "int64"), b.constant(0, "int64"))

    assert lowered(graph_of(build, *LARGE)) == ["matmul"]


def branching(build_inner, build):
    """A graph with a cond whose first branch a function builds, and that branch."""
    inner = graph_of(build_inner, *LARGE)
    other = graph_of(lambda b, x, w: build_inner(b, b.op("neg", x), w), *LARGE)

    def outer(b, which, x, w):
        def choose(x, w, which=which):
            return b.multi("cond", which, x, w, then=inner, orelse=other)[0]

        return build(b, choose, x, w)

    lower_products(graph := graph_of(outer, "bool[]", *LARGE))
    return graph, inner


def is_lowered(graph):
    return [node.attrs.get("compute") for node in graph.nodes if node.op == "matmul"]


def best(b, y):
    return b.op("argmax", y, axis=1, dtype="int64")


def test_a_product_in_a_branch_that_chooses_outside_of_it_stays():
    _, inner = branching(product, lambda b, choose, x, w: best(b, choose(x, w)))
    assert is_lowered(inner) == [None]


def test_a_product_that_chooses_within_a_branch_or_by_which_stays():
    def build(b, choose, x, w):
        return choose(product(b, x, w), w)

    graph, _ = branching(lambda b, x, w: best(b, b.op("add", x, 1.0)), build)
    assert is_lowered(graph) == [None]
    graph, _ = branching(lambda b, x, w: b.op("add", x, 1.0), build)
    assert is_lowered(graph) == ["bfloat16"]

    def by_which(b, choose, x, w):
        large = b.op("greater", product(b, x, w), 0.5)
        which = b.op("any", large, axes=(0, 1), keepdims=False)
        return choose(x, w, which)

    graph, _ = branching(lambda b, x, w: best(b, x), by_which)
    assert is_lowered(graph) == [None]
