"""Projection and cross-entropy become one op where only the loss is wanted."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import print_graph, verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_linear_loss import (
    drop_weight_gradients,
    fuse_linear_loss,
    merge_linear_loss,
)
from tests.graphs import check_pass, graph_of, ops_of, random_inputs, run_plain

TYPES = ("float32[5,4]", "float32[4,7]", "int32[5]")


def logits_of(b, h, w, transpose=False):
    return b.op("matmul", h, w, transpose_a=False, transpose_b=transpose)


def loss_of(b, h, w, labels, transpose=False):
    return b.multi("sparse_softmax_xent", logits_of(b, h, w, transpose), labels)[0]


@pytest.mark.parametrize("transpose", [False, True])
def test_projection_and_loss_become_one(transpose):
    weight = "float32[7,4]" if transpose else "float32[4,7]"
    graph = graph_of(lambda b, h, w, y: loss_of(b, h, w, y, transpose), TYPES[0], weight, TYPES[2])
    assert check_pass(graph, fuse_linear_loss) == ["linear_softmax_xent"]
    assert graph.nodes[-1].attrs["transpose_weight"] == transpose


@pytest.mark.parametrize("first", ["product", "bias"])
def test_bias_goes_along(first):
    def build(b, h, w, labels, bias):
        product = logits_of(b, h, w)
        operands = (product, bias) if first == "product" else (bias, product)
        return b.multi("sparse_softmax_xent", b.op("add", *operands), labels)[0]

    graph = graph_of(build, *TYPES, "float32[7]")
    assert check_pass(graph, fuse_linear_loss) == ["linear_softmax_xent"]
    assert len(graph.nodes[-1].inputs) == 4


@pytest.mark.parametrize("shape", ["float32[5,7]", "float32[5,1]", "float32[]", "float32[1]"])
def test_other_sums_are_no_bias(shape):
    def build(b, h, w, labels, other):
        return b.multi("sparse_softmax_xent", b.op("add", logits_of(b, h, w), other), labels)[0]

    ops = check_pass(graph_of(build, *TYPES, shape), fuse_linear_loss)
    assert "linear_softmax_xent" not in ops


def test_only_one_bias_goes_along():
    def build(b, h, w, labels, bias):
        logits = b.op("add", b.op("add", logits_of(b, h, w), bias), bias)
        return b.multi("sparse_softmax_xent", logits, labels)[0]

    ops = check_pass(graph_of(build, *TYPES, "float32[7]"), fuse_linear_loss)
    assert "linear_softmax_xent" not in ops


def test_logits_that_are_wanted_stay():
    def build(b, h, w, labels):
        logits = logits_of(b, h, w)
        return b.multi("sparse_softmax_xent", logits, labels)[0], logits

    assert check_pass(graph_of(build, *TYPES), fuse_linear_loss) == [
        "matmul",
        "sparse_softmax_xent",
    ]


def test_logits_that_are_read_elsewhere_stay():
    def build(b, h, w, labels):
        logits = logits_of(b, h, w)
        found = b.op("argmax", logits, axis=1, dtype="int32")
        return b.multi("sparse_softmax_xent", logits, labels)[0], found

    ops = check_pass(graph_of(build, *TYPES), fuse_linear_loss)
    assert "linear_softmax_xent" not in ops


def test_other_dtypes_stay():
    graph = graph_of(loss_of, "float64[5,4]", "float64[4,7]", TYPES[2])
    assert check_pass(graph, fuse_linear_loss) == ["matmul", "sparse_softmax_xent"]


def trained(weight_of_loss=None):
    """Loss and its gradients by hidden states and weight; the loss may be weighted."""

    def build(b, h, w, labels):
        loss = loss_of(b, h, w, labels)
        total = b.op("sum", loss, axes=(0,), keepdims=False)
        y = total if weight_of_loss is None else weight_of_loss(b, total)
        return y, *b.multi("gradient", y, h, w, ys=1, dys=(False,), xs=2)

    graph = graph_of(build, *TYPES)
    fuse_linear_loss(graph)
    differentiate(graph)
    graph.prune()
    return graph


def test_forward_and_backward_compute_logits_once():
    graph = trained()
    assert "linear_softmax_xent_grad" in ops_of(graph)
    ops = check_pass(graph, merge_linear_loss)
    assert ops.count("linear_softmax_xent_train") == 1
    assert not {"linear_softmax_xent", "linear_softmax_xent_grad"} & set(ops)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_gradient_of_a_weight_is_dropped_where_nothing_reads_it(frozen):
    graph = trained()
    if frozen:
        del graph.outputs[2]
    check_pass(graph, drop_weight_gradients)
    check_pass(graph, merge_linear_loss)
    (node,) = [node for node in graph.nodes if node.op == "linear_softmax_xent_train"]
    assert len(node.outputs) == (2 if frozen else 3)


def test_a_cotangent_that_needs_the_loss_keeps_them_apart():
    graph = trained(lambda b, total: b.op("square", total))
    before = print_graph(graph)
    ops = check_pass(graph, merge_linear_loss)
    assert {"linear_softmax_xent", "linear_softmax_xent_grad"} <= set(ops)
    assert print_graph(graph) == before


def test_of_two_losses_whose_cotangents_need_each_other_one_is_joined():
    def build(b, h, w, labels):
        totals = [
            b.op("sum", loss_of(b, x, w, labels), axes=(0,), keepdims=False)
            for x in (h, b.op("tanh", h))
        ]
        y = b.op("mul", *totals)
        return y, *b.multi("gradient", y, h, w, ys=1, dys=(False,), xs=2)

    graph = graph_of(build, *TYPES)
    fuse_linear_loss(graph)
    differentiate(graph)
    graph.prune()
    ops = check_pass(graph, merge_linear_loss)
    assert ops.count("linear_softmax_xent_train") == 1
    assert ops.count("linear_softmax_xent") == ops.count("linear_softmax_xent_grad") == 1


def test_gradients_are_those_of_separate_ops():
    def build(b, h, w, labels):
        loss = b.op("mean", loss_of(b, h, w, labels), axes=(0,), keepdims=False)
        return loss, *b.multi("gradient", loss, h, w, ys=1, dys=(False,), xs=2)

    plain, fused = graph_of(build, *TYPES), graph_of(build, *TYPES)
    fuse_linear_loss(fused)
    for graph in (plain, fused):
        differentiate(graph)
    merge_linear_loss(fused)
    verify(fused, infer)
    arrays = random_inputs(plain)
    for ours, theirs in zip(run_plain(fused, arrays), run_plain(plain, arrays)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
