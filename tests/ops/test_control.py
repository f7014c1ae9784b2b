"""Conditionals, recorded gradients and functions with gradients of their own: types, copying."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType, print_graph
from cerebras_tf.ops import Builder
from cerebras_tf.ops.control import inline
from tests.graphs import graph_of, run_plain
from tests.messages import raises

F23 = "float32[2,3]"


def conditional(then, orelse, *types):
    """Output types of a conditional with these branches."""
    b = Builder(Graph())
    inputs = [b.graph.add_input("p", TensorType("bool", ()))]
    inputs += [b.graph.add_input("x", TensorType(dtype, shape)) for dtype, shape in types]
    return [value.type for value in b.multi("cond", *inputs, then=then, orelse=orelse)]


def test_a_conditional_has_the_outputs_of_its_branches():
    then = graph_of(lambda b, x: [b.op("exp", x), b.op("is_nan", x)], F23)
    orelse = graph_of(lambda b, x: [x, b.op("is_inf", x)], F23)
    found = conditional(then, orelse, ("float32", (2, 3)))
    assert found == [TensorType("float32", (2, 3)), TensorType("bool", (2, 3))]


def test_a_dimension_in_which_branches_differ_is_not_known():
    def reshaped(*shape):
        return graph_of(lambda b, x: b.op("reshape", x, shape=shape), F23)

    found = conditional(reshaped(6, 1), reshaped(3, 1 + 1), ("float32", (2, 3)))
    assert found == [TensorType("float32", (None, None))]
    found = conditional(reshaped(6, 1), reshaped(6, 1), ("float32", (2, 3)))
    assert found == [TensorType("float32", (6, 1))]


def test_operands_that_do_not_fit_a_branch_are_refused():
    branch = graph_of(lambda b, x: b.op("exp", x), F23)
    with raises(GraphError, "cond"):
        conditional(branch, branch, ("float32", (3, 2)))


@pytest.mark.parametrize(
    "other", [lambda b, x: b.op("is_nan", x), lambda b, x: b.op("reshape", x, shape=(6,))]
)
def test_branches_of_different_dtype_or_rank_are_refused(other):
    then = graph_of(lambda b, x: b.op("exp", x), F23)
    with raises(GraphError, "cond"):
        conditional(then, graph_of(other, F23), ("float32", (2, 3)))


def test_a_gradient_has_the_types_of_what_it_is_taken_by():
    b = Builder(Graph())
    y = b.graph.add_input("y", TensorType("float32", ()))
    dy = b.graph.add_input("dy", TensorType("float32", ()))
    xs = [b.graph.add_input("x", TensorType("float32", shape)) for shape in [(2,), (3, 4)]]
    stop = b.graph.add_input("stop", TensorType("float32", (7,)))
    found = b.multi("gradient", y, y, dy, *xs, stop, ys=2, dys=(False, True), xs=2)
    assert [value.shape for value in found] == [(2,), (3, 4)]


def test_a_custom_gradient_gives_its_operands_unchanged():
    backward = graph_of(lambda b, captured, dy: b.op("mul", captured, dy), F23, F23)
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float32", (2, 3)))
    captured = b.graph.add_input("captured", TensorType("float32", (2, 3)))
    found = b.multi("custom_gradient", x, captured, xs=1, backward=backward, gives=(0,))
    assert [value.type for value in found] == [x.type]


def test_inlined_graphs_compute_what_they_computed_and_are_left_as_they_were():
    body = graph_of(lambda b, x, y: [b.op("sub", b.op("exp", x), y), y], F23, F23)
    before = print_graph(body)
    outer = graph_of(lambda b, x, y: inline(b, body, [y, x]), F23, F23)
    x, y = np.random.default_rng(2).standard_normal((2, 2, 3)).astype(np.float32)
    for ours, expected in zip(run_plain(outer, [x, y]), run_plain(body, [y, x])):
        np.testing.assert_array_equal(ours, expected)
    assert print_graph(body) == before
    assert not {id(node) for node in body.nodes} & {id(node) for node in outer.nodes}


def test_inlined_nodes_keep_the_name_of_their_source():
    body = graph_of(lambda b, x: b.op("exp", x), F23)
    body.nodes[0].source = "model/exp"
    outer = graph_of(lambda b, x: inline(b, body, [x]), F23)
    assert [node.source for node in outer.nodes] == ["model/exp"]
