"""Cheap conditionals become select; costly and random ones stay."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.inline_regions import inline_regions
from tests.graphs import CLOSE, check_pass, graph_of, ops_of, run_plain

F4 = "float32[4]"


def conditional(then, orelse, *types):
    """A graph of one cond on a bool input and inputs of these types."""

    def build(b, p, *xs):
        graphs = {"then": graph_of(then, *types), "orelse": graph_of(orelse, *types)}
        return b.multi("cond", p, *xs, **graphs)

    return graph_of(build, "bool[]", *types)


def both_ways(graph, *arrays):
    return [run_plain(graph, [np.array(way), *arrays]) for way in (True, False)]


def check(make):
    """check_pass, and the outputs for both values of the predicate."""
    random = np.random.default_rng(3)
    graph = make()
    shapes = [value.shape for value in graph.inputs[1:]]
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    wanted = both_ways(graph, *arrays)
    ops = check_pass(graph, inline_regions)
    for ours, theirs in zip(both_ways(graph, *arrays), wanted):
        for a, c in zip(ours, theirs):
            np.testing.assert_allclose(a, c, *CLOSE)
    return ops


def test_cheap_branches_become_select():
    ops = check(lambda: conditional(lambda b, x: b.op("exp", x), lambda b, x: b.op("neg", x), F4))
    assert ops == ["exp", "neg", "select"]


def test_every_output_is_selected_by_itself():
    ops = check(
        lambda: conditional(
            lambda b, x, y: (b.op("add", x, y), b.op("mul", x, 2.0)),
            lambda b, x, y: (y, b.op("mul", y, 3.0)),
            F4,
            F4,
        )
    )
    assert ops == ["add", "mul", "mul", "select", "select"]


def test_an_operand_that_both_branches_return_needs_no_select():
    ops = check(lambda: conditional(lambda b, x, y: x, lambda b, x, y: x, F4, F4))
    assert ops == []


def test_inner_conditionals_are_inlined_first():
    def outer(b, p, x):
        inner = {
            "then": graph_of(lambda i, v: i.op("exp", v), F4),
            "orelse": graph_of(lambda i, v: i.op("neg", v), F4),
        }
        return b.op("cond", p, x, **inner)

    def build(b, p, x):
        graphs = {
            "then": graph_of(outer, "bool[]", F4),
            "orelse": graph_of(lambda i, p, v: i.op("square", v), "bool[]", F4),
        }
        return b.op("cond", p, p, x, **graphs)

    graph = graph_of(build, "bool[]", F4)
    assert check_pass(graph, inline_regions) == ["exp", "neg", "select", "square", "select"]


COSTLY = {
    "a product": lambda b, x: b.op("matmul", x, x, transpose_a=False, transpose_b=False),
    "random numbers": lambda b, x: b.op(
        "random_uniform",
        b.constant(0, "int64"),
        b.constant(np.array([1, 2])),
        shape=(3, 3),
        dtype="float32",
    ),
}


@pytest.mark.parametrize("costly", COSTLY.values(), ids=COSTLY.keys())
@pytest.mark.parametrize("side", ["then", "orelse"])
def test_costly_branches_stay(costly, side):
    def cheap(b, x):
        return b.op("neg", x)

    then, orelse = (costly, cheap) if side == "then" else (cheap, costly)
    graph = conditional(then, orelse, "float32[3,3]")
    inline_regions(graph)
    verify(graph, infer)
    assert ops_of(graph) == ["cond"]


def test_branches_of_different_shapes_stay():
    graph = conditional(
        lambda b, x: b.op("exp", x), lambda b, x: b.op("sum", x, axes=(0,), keepdims=True), F4
    )
    assert graph.outputs[0].shape == (None,)
    inline_regions(graph)
    assert ops_of(graph) == ["cond"]


def test_inlined_nodes_keep_layer_and_direction():
    graph = conditional(lambda b, x: b.op("exp", x), lambda b, x: b.op("neg", x), F4)
    graph.nodes[-1].layer, graph.nodes[-1].direction = 4, "update"
    inline_regions(graph)
    assert {(node.layer, node.direction) for node in graph.nodes} == {(4, "update")}
