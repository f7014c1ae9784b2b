"""The driver of rewrites: what rules see, where their nodes go, and what becomes of old values."""

from __future__ import annotations

from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.rewrite import rewrite
from tests.graphs import graph_of, ops_of

F4 = "float32[4]"


def swap(old, new):
    """A rule that puts one unary op in place of another."""
    return lambda b, node: [b.op(new, node.inputs[0])] if node.op == old else None


def test_a_rule_s_nodes_take_the_place_and_the_origin_of_the_old():
    def build(b, x):
        first = b.op("exp", x)
        b.source, b.direction, b.layer = "model.py:7", "backward", 3
        return b.op("tanh", b.op("neg", first))

    graph = graph_of(build, F4)
    assert rewrite(graph, swap("neg", "sin"))
    verify(graph, infer)
    assert ops_of(graph) == ["exp", "sin", "tanh"]
    made = graph.nodes[1]
    assert (made.source, made.direction, made.layer) == ("model.py:7", "backward", 3)


def test_a_rule_that_finds_nothing_changes_nothing():
    graph = graph_of(lambda b, x: b.op("exp", x), F4)
    assert not rewrite(graph, swap("neg", "sin"))
    assert ops_of(graph) == ["exp"]


def test_operands_are_those_that_stand_for_the_old_ones():
    graph = graph_of(lambda b, x: b.op("neg", b.op("neg", b.op("neg", x))), F4)
    seen = []

    def rule(b, node):
        seen.append(node.inputs[0].node and node.inputs[0].node.op)
        return [b.op("sin", node.inputs[0])]

    assert rewrite(graph, rule)
    assert seen == [None, "sin", "sin"]
    assert ops_of(graph) == ["sin"] * 3


def test_values_found_before_the_walk_are_replaced_when_they_are_used():
    """The second rule holds the output of the first `neg`, which is gone by then."""
    graph = graph_of(lambda b, x: b.op("exp", b.op("tanh", b.op("neg", x))), F4)
    first, _, last = graph.nodes

    def rule(b, node):
        if node is first:
            return [b.op("sin", node.inputs[0])]
        return [b.op("cos", first.output)] if node is last else None

    assert rewrite(graph, rule)
    verify(graph, infer)
    assert ops_of(graph) == ["sin", "cos"]


def test_a_value_found_before_the_walk_may_stand_for_another():
    graph = graph_of(lambda b, x: b.op("exp", b.op("tanh", b.op("neg", x))), F4)
    first, _, last = graph.nodes

    def rule(b, node):
        if node is first:
            return [b.op("sin", node.inputs[0])]
        return [first.output] if node is last else None

    rewrite(graph, rule)
    verify(graph, infer)
    assert ops_of(graph) == ["sin"]


def test_outputs_of_the_graph_are_replaced_and_what_nobody_needs_goes():
    graph = graph_of(lambda b, x: (b.op("neg", x), b.op("exp", x)), F4)
    rewrite(graph, lambda b, node: [node.inputs[0]] if node.op == "neg" else None)
    assert graph.outputs[0] is graph.inputs[0]
    assert ops_of(graph) == ["exp"]


def test_a_rule_may_give_a_node_other_operands():
    graph = graph_of(lambda b, x, y: b.op("add", b.op("neg", x), y), F4, F4)

    def rule(b, node):
        if node.op == "add":
            node.inputs = [b.op("sin", node.inputs[1]), node.inputs[1]]

    assert not rewrite(graph, rule)
    verify(graph, infer)
    assert ops_of(graph) == ["sin", "add"]


def test_constants_are_computed_where_asked():
    for fold in (True, False):
        graph = graph_of(lambda b, x: b.op("add", x, b.op("neg", b.constant(2.0))), "float64[]")
        rewrite(graph, swap("neg", "square"), fold)
        assert ("square" in ops_of(graph)) is not fold
