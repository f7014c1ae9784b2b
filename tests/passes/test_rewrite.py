"""The driver of rewrites: what rules see, where their nodes go, and what becomes of old values."""

from __future__ import annotations

import numpy as np

from cerebras_tf.ir import Graph, TensorType, verify
from cerebras_tf.ops import Builder, infer
from cerebras_tf.passes.fuse_attention import fuse_attention
from cerebras_tf.passes.fuse_layer_norm import fuse_layer_norm
from cerebras_tf.passes.rewrite import gradient_operands, rewrite
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


def test_what_a_rule_builds_is_shown_to_it_where_asked():
    """neg becomes tanh of sin, sin becomes cos."""

    def rule(b, node):
        if node.op == "neg":
            return [b.op("tanh", b.op("sin", node.inputs[0]))]
        return [b.op("cos", node.inputs[0])] if node.op == "sin" else None

    expected = {False: ["tanh", "sin"], True: ["tanh", "cos"]}
    for again in (False, True):
        graph = graph_of(lambda b, x: b.op("neg", x), F4)
        rewrite(graph, rule, again=again)
        verify(graph, infer)
        assert sorted(ops_of(graph)) == sorted(expected[again])


def test_constants_are_computed_where_asked():
    for fold in (True, False):
        graph = graph_of(lambda b, x: b.op("add", x, b.op("neg", b.constant(2.0))), "float64[]")
        rewrite(graph, swap("neg", "square"), fold)
        assert ("square" in ops_of(graph)) is not fold


def gradient_by(b, y, x):
    return b.op("gradient", b.op("sum", y, axes=(0,), keepdims=False), x, ys=1, dys=(False,), xs=1)


def norm_with_gradient_by_the_difference(watch):
    graph = Graph("norm")
    b = Builder(graph)
    x = graph.add_input("x", TensorType("float32", (4, 8)))
    gamma, beta = (graph.add_input(n, TensorType("float32", (8,))) for n in ("gamma", "beta"))
    mean = b.op("mean", x, axes=(1,), keepdims=True)
    centred = b.op("sub", x, mean)
    variance = b.op("mean", b.op("square", centred), axes=(1,), keepdims=True)
    rstd = b.op("rsqrt", b.op("add", variance, 1e-5))
    y = b.op("add", b.op("mul", b.op("mul", centred, rstd), gamma), beta)
    graph.outputs = [gradient_by(b, y, centred if watch else x)]
    return graph


def attention_with_gradient_by_the_scores(watch):
    graph = Graph("attention")
    b = Builder(graph)
    q, k, v = (graph.add_input(n, TensorType("float32", (2, 3, 5, 4))) for n in "qkv")
    scores = b.op("matmul", q, k, transpose_a=False, transpose_b=True)
    y = b.op("matmul", b.op("softmax", scores), v, transpose_a=False, transpose_b=False)
    graph.outputs = [gradient_by(b, y, scores if watch else q)]
    return graph


def test_layer_norm_whose_parts_are_differentiated_by_stays():
    for watch in (False, True):
        graph = norm_with_gradient_by_the_difference(watch)
        fuse_layer_norm(graph)
        assert ("layer_norm" in ops_of(graph)) == (not watch)


def test_attention_whose_scores_are_differentiated_by_stays():
    for watch in (False, True):
        graph = attention_with_gradient_by_the_scores(watch)
        fuse_attention(graph, set())
        assert ("attention" in ops_of(graph)) == (not watch)


def test_layer_norm_with_a_stopped_mean_in_the_difference_stays():
    graph = Graph("norm")
    b = Builder(graph)
    x = graph.add_input("x", TensorType("float32", (4, 8)))
    mean = b.op("stop_gradient", b.op("mean", x, axes=(1,), keepdims=True))
    variance = b.op("mean", b.op("squared_difference", x, mean), axes=(1,), keepdims=True)
    rstd = b.op("rsqrt", b.op("add", variance, 1e-5))
    ones, zeros = (b.constant(np.full(8, n, np.float32)) for n in (1, 0))
    graph.outputs = [b.op("add", b.op("mul", b.op("mul", b.op("sub", x, mean), rstd), ones), zeros)]
    fuse_layer_norm(graph)
    assert "layer_norm" not in ops_of(graph)


def test_watched_values_leaves_graph_inputs_out():
    graph = attention_with_gradient_by_the_scores(watch=False)
    assert all(value.node is not None for value in gradient_operands(graph))
    assert graph.inputs[0] not in gradient_operands(graph)
