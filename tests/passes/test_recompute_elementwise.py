"""Cheap forward values are made again where they are read backward; costly ones are kept."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.order import assign_layers, order_nodes
from cerebras_tf.ir import verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.recompute_elementwise import recompute_elementwise
from tests.graphs import check_pass
from tests.steps import StepBuilder, residual_step


def differentiated(step):
    layers = assign_layers(step)
    differentiate(step.graph)
    step.graph.prune()
    order_nodes(step, layers)
    verify(step.graph, infer)
    return step


def gelu_like():
    """x W through a chain of cheap ops, then another product."""
    s = StepBuilder()
    x = s.feature("x", 4, 8)
    product = s.matmul(x, s.variable("w", 8, 8))
    inner = s.b.op("tanh", s.b.op("mul", product, s.b.op("square", product)))
    out = s.matmul(s.b.op("mul", inner, product), s.variable("v", 8, 8))
    loss = s.b.op("sum", s.b.op("square", out), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w", "v"], clip=False)
    return differentiated(s.done(loss=loss))


def forward_values_read_backward(graph):
    """Ops whose forward results the backward pass reads."""
    return {
        value.node.op
        for node in graph.nodes
        if node.direction == "backward"
        for value in node.inputs
        if value.node is not None and value.node.direction == "forward"
    } - {"constant"}


def test_a_chain_of_cheap_ops_is_made_again():
    step = gelu_like()
    assert "tanh" in forward_values_read_backward(step.graph)
    check_pass(step.graph, recompute_elementwise)
    assert "tanh" not in forward_values_read_backward(step.graph)
    assert "matmul" in forward_values_read_backward(step.graph)


def test_products_are_not_made_again():
    step = gelu_like()
    before = sum(node.op == "matmul" for node in step.graph.nodes)
    recompute_elementwise(step.graph)
    assert sum(node.op == "matmul" for node in step.graph.nodes) == before


def test_copies_run_in_the_backward_pass_of_their_layer():
    step = gelu_like()
    recompute_elementwise(step.graph)
    copies = [n for n in step.graph.nodes if n.op == "tanh" and n.direction == "backward"]
    assert [node.layer for node in copies] == [step.graph.nodes[0].layer]


def test_random_numbers_are_drawn_once():
    s = StepBuilder()
    x, count = s.feature("x", 4, 8), s.variable("step", dtype="int64")
    seeds = s.b.constant(np.array([1, 2]))
    drawn = s.b.op("random_uniform", count, seeds, shape=(4, 8), dtype="float32")
    product = s.matmul(x, s.variable("w", 8, 8))
    kept = s.b.op("mul", s.b.op("tanh", product), drawn)
    loss = s.b.op("sum", s.b.op("square", kept), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w"], clip=False)
    graph = differentiated(s.done(loss=loss)).graph
    recompute_elementwise(graph)
    verify(graph, infer)
    assert sum(node.op == "random_uniform" for node in graph.nodes) == 1


@pytest.mark.parametrize("blocks", [1, 4])
def test_what_passes_between_layers_is_kept(blocks):
    step = differentiated(residual_step(blocks))
    check_pass(step.graph, recompute_elementwise)
    for node in step.graph.nodes:
        if node.direction == "forward":
            assert all(v.node is None or v.node.direction == "forward" for v in node.inputs)


def test_wanted_values_are_kept():
    s = StepBuilder()
    product = s.matmul(s.feature("x", 4, 8), s.variable("w", 8, 8))
    seen = s.b.op("tanh", product)
    loss = s.b.op("sum", s.b.op("square", seen), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w"], clip=False)
    step = differentiated(s.done(loss=loss, seen=seen))
    recompute_elementwise(step.graph)
    assert step.results["seen"] is seen
    assert np.sum([node.op == "tanh" for node in step.graph.nodes]) == 1


def test_of_a_dropout_the_mask_is_kept_and_not_the_numbers():
    s = StepBuilder()
    product = s.matmul(s.feature("x", 4, 8), s.variable("w", 8, 8))
    step = s.b.constant(np.asarray(0, np.int64), "int64")
    seeds = s.b.constant(np.array([1, 2]))
    numbers = s.b.op("random_uniform", step, seeds, shape=(4, 8), dtype="float32")
    dropped = s.b.op("select", s.b.op("greater_equal", numbers, 0.5), product, 0.0)
    out = s.matmul(dropped, s.variable("v", 8, 8))
    loss = s.b.op("sum", s.b.op("square", out), axes=(0, 1), keepdims=False)
    s.momentum(loss, ["w", "v"], clip=False)
    done = differentiated(s.done(loss=loss))
    recompute_elementwise(done.graph)
    read = forward_values_read_backward(done.graph)
    assert "greater_equal" in read and "random_uniform" not in read
