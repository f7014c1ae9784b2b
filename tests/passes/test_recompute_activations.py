"""Backward nodes read copies of forward values that the same kernels make of the same operands."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import compile_step
from cerebras_tf.ir import verify
from cerebras_tf.ops import infer, is_view, viewed
from cerebras_tf.passes.fuse_elementwise import fuse_elementwise
from cerebras_tf.passes.recompute_activations import (
    Segment,
    recompute_activations,
    recompute_recipe,
)
from tests.graphs import check_pass, graph_of, ops_of, random_inputs, run_plain
from tests.steps import gelu_step


def all_of(graph, first, last):
    """The segment of these layers that makes all of their forward values again."""
    again = {
        viewed(value)
        for node in graph.nodes
        for value in node.outputs
        if node.direction == "forward" and first <= node.layer <= last and node.op != "constant"
    }
    return Segment(first, last, frozenset(again))


@pytest.fixture
def graph():
    """A step of four blocks as it is before it is assembled."""
    step = gelu_step()
    compile_step(step)
    return step.graph


def forward_values_read_backward(graph, layers):
    """Values that forward nodes of the layers make and their backward nodes read."""
    return {
        value
        for node in graph.nodes
        for value in node.inputs
        if node.direction == "backward" and node.layer in layers
        if value.node is not None and value.node.direction == "forward"
        if value.node.layer in layers and value.node.op != "constant"
    }


@pytest.mark.parametrize("first,last", [(2, 2), (1, 3), (0, 4)])
def test_no_forward_value_of_the_layers_is_read_backward(graph, first, last):
    segment = all_of(graph, first, last)
    layers = range(first, last + 1)
    assert forward_values_read_backward(graph, layers)
    arrays = random_inputs(graph)
    wanted = run_plain(graph, arrays)
    recompute_activations(graph, [segment])
    verify(graph, infer)
    assert not forward_values_read_backward(graph, layers)
    for ours, theirs in zip(run_plain(graph, arrays), wanted):
        np.testing.assert_array_equal(ours, theirs)


def test_a_second_run_changes_nothing(graph):
    check_pass(graph, lambda g: recompute_activations(g, [all_of(g, 1, 1), all_of(g, 2, 2)]))


def test_copies_stand_in_the_backward_pass_of_their_layer(graph):
    before = set(graph.nodes)
    recompute_activations(graph, [all_of(graph, 1, 3)])
    copies = [node for node in graph.nodes if node not in before]
    assert {node.direction for node in copies} == {"backward"}
    order = [(node.direction, node.layer) for node in graph.nodes if node.op != "constant"]
    groups = [key for i, key in enumerate(order) if i == 0 or order[i - 1] != key]
    turn = [layer for direction, layer in groups if direction == "backward"]
    assert turn == [4, 1, 2, 3, 2, 1, 0]


def test_what_only_the_forward_pass_reads_is_not_made_again(graph):
    """The second product of a block goes into the sum of the residual stream and nowhere else."""
    before = ops_of(graph).count("matmul")
    recompute_activations(graph, [all_of(graph, 2, 2)])
    assert ops_of(graph).count("matmul") == before + 1


def fused_of(build, *types):
    """The one fused node of a graph."""
    graph = graph_of(build, *types)
    fuse_elementwise(graph, lambda node: 0)
    (node,) = [node for node in graph.nodes if node.op == "fused_elementwise"]
    assert not is_view(node)
    return node


def test_a_fused_body_is_cut_down_to_what_is_wanted():
    def mask_and_sum(b, numbers, x, stream):
        keep = b.op("greater_equal", numbers, 0.1)
        return keep, b.op("add", b.op("select", keep, x, 0.0), stream)

    node = fused_of(mask_and_sum, "float32[8]", "float32[8]", "float32[8]")
    (mask,) = [value for value in node.outputs if value.dtype == "bool"]
    recipe = recompute_recipe(node, [mask])
    assert recipe.outputs == [mask] and recipe.inputs == [node.inputs[0]]
    assert [inner.op for inner in recipe.attrs["body"].nodes if inner.op != "constant"] == [
        "greater_equal"
    ]
    assert len(node.attrs["body"].outputs) == 2, "the node stays as it is"


def test_a_body_stays_whole_where_a_product_would_lose_a_reader():
    """With one reader it might contract with the addition and round differently."""

    def shared_product(b, x, y, z):
        product = b.op("mul", x, y)
        return b.op("add", product, z), b.op("sub", product, z)

    node = fused_of(shared_product, *["float32[8]"] * 3)
    recipe = recompute_recipe(node, node.outputs[:1])
    assert recipe.outputs == node.outputs and recipe.inputs == node.inputs


def test_a_body_stays_whole_where_a_product_would_not_be_written():
    def written_product(b, x, y, z):
        product = b.op("mul", x, y)
        return product, b.op("add", product, z)

    node = fused_of(written_product, *["float32[8]"] * 3)
    total = next(v for v in node.outputs if node.attrs["body"].outputs[v.index].node.op == "add")
    product = next(v for v in node.outputs if v is not total)
    assert recompute_recipe(node, [total]).outputs == node.outputs
    assert recompute_recipe(node, [product]).outputs == [product]
