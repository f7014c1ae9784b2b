"""Equal expressions are computed once, except where they only look equal."""

from __future__ import annotations

import numpy as np

from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.merge_common import merge_common
from tests.graphs import check_pass, graph_of, ops_of, random_inputs, run_plain

F4 = "float32[4]"


def test_equal_expressions_are_computed_once():
    def build(b, x):
        return b.op("mul", b.op("exp", b.op("neg", x)), b.op("exp", b.op("neg", x)))

    assert check_pass(graph_of(build, F4), merge_common) == ["neg", "exp", "mul"]


def test_equal_constants_become_one():
    graph = graph_of(lambda b, x: b.op("add", b.op("mul", x, 2.0), 2.0), F4)
    check_pass(graph, merge_common)
    assert [node.op for node in graph.nodes] == ["constant", "mul", "add"]


def test_operands_in_another_order_stay_apart():
    graph = graph_of(lambda b, x, y: (b.op("sub", x, y), b.op("sub", y, x)), F4, F4)
    assert check_pass(graph, merge_common) == ["sub", "sub"]


def test_other_attributes_stay_apart():
    def build(b, x):
        return [b.op("sum", x, axes=(axis,), keepdims=False) for axis in (0, 1)]

    assert check_pass(graph_of(build, "float32[3,3]"), merge_common) == ["sum", "sum"]


def test_constants_of_one_value_and_two_dtypes_stay_apart():
    graph = graph_of(lambda b, x: (b.constant(1, "int32"), b.constant(1, "int64")), F4)
    merge_common(graph)
    assert [value.dtype for value in graph.outputs] == ["int32", "int64"]
    assert graph.outputs[0] is not graph.outputs[1]


def test_random_ops_draw_anew():
    attrs = {"shape": (4,), "dtype": "float32"}
    graph = graph_of(
        lambda b, *drawn_from: [b.op("random_uniform", *drawn_from, **attrs) for _ in range(2)],
        "int64[]",
        "int64[2]",
    )
    merge_common(graph)
    assert ops_of(graph) == ["random_uniform", "random_uniform"]


def test_nodes_of_several_outputs_merge_output_by_output():
    def build(b, logits, labels):
        first = b.multi("sparse_softmax_xent", logits, labels)
        second = b.multi("sparse_softmax_xent", logits, labels)
        return b.op("add", first[0], second[1]), b.op("sub", second[0], first[1])

    graph = graph_of(build, "float32[3,4]", "int32[3]")
    assert check_pass(graph, merge_common) == ["sparse_softmax_xent", "add", "sub"]


def test_values_that_are_differentiated_by_stay_apart():
    """Two copies of x are two places to differentiate by; merged, their gradients would add up."""

    def build(b, x):
        first, second = b.op("identity", x), b.op("identity", x)
        y = b.op("add", b.op("square", first), b.op("mul", second, 3.0))
        return b.multi("gradient", y, first, second, ys=1, dys=(False,), xs=2)

    graph = graph_of(build, F4)
    arrays = random_inputs(graph)
    merge_common(graph)
    differentiate(graph)
    first, second = run_plain(graph, arrays)
    np.testing.assert_allclose(first, 2 * arrays[0], rtol=1e-6)
    np.testing.assert_allclose(second, np.full(4, 3.0), rtol=1e-6)
