"""Patterns keep the values that gradients are taken by: scores of attention, parts of a norm."""

from __future__ import annotations

import numpy as np

from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import Builder
from cerebras_tf.passes.fuse_attention import fuse_attention
from cerebras_tf.passes.fuse_layer_norm import fuse_layer_norm
from cerebras_tf.passes.watched import watched_values


def ops_of(graph):
    return [node.op for node in graph.nodes]


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
    assert all(value.node is not None for value in watched_values(graph))
    assert graph.inputs[0] not in watched_values(graph)
