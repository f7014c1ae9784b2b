"""Attention is recognised with its scale and masks, and not where its weights are needed.

Letters: B batch, A heads, S query length, T key length, D head width.
"""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.passes.fuse_attention import fuse_attention
from tests.graphs import check_pass, graph_of

B, A, S, D = 2, 3, 5, 4
HEADS = f"float32[{B},{A},{S},{D}]"
QKV = (HEADS, HEADS, HEADS)
ROWS = (f"float32[{B},{S},{A},{D}]",) * 3
SWAP = (0, 2, 1, 3)
ATTENTION = (2e-5, 1e-5)


def apply(graph):
    fuse_attention(graph, set())


def causal_mask(rows=S, columns=S, hidden=-1e9):
    later = np.arange(columns)[None, :] > np.arange(rows)[:, None] + (columns - rows)
    return np.where(later, hidden, 0.0).astype(np.float32).reshape(1, 1, rows, columns)


def product(b, q, k):
    return b.op("matmul", q, k, transpose_a=False, transpose_b=True)


def weigh(b, scores, v):
    return b.op("matmul", b.op("softmax", scores), v, transpose_a=False, transpose_b=False)


def plain(b, q, k, v):
    return weigh(b, product(b, q, k), v)


def scaled(b, q, k, v):
    return weigh(b, b.op("mul", product(b, q, k), 0.5), v)


def divided(b, q, k, v):
    return weigh(b, b.op("div", product(b, q, k), 2.0), v)


def causal(b, q, k, v):
    return weigh(b, b.op("add", product(b, q, k), causal_mask()), v)


def scaled_causal(b, q, k, v):
    return weigh(b, b.op("add", b.op("mul", product(b, q, k), 0.5), causal_mask()), v)


def mask_first(b, q, k, v):
    return weigh(b, b.op("add", b.constant(causal_mask()), product(b, q, k)), v)


def transposed_keys(b, q, k, v):
    turned = b.op("transpose", k, permutation=(0, 1, 3, 2))
    scores = b.op("matmul", q, turned, transpose_a=False, transpose_b=False)
    return weigh(b, scores, v)


FORMS = {
    plain: (1.0, False),
    scaled: (0.5, False),
    divided: (0.5, False),
    causal: (1.0, True),
    scaled_causal: (0.5, True),
    mask_first: (1.0, True),
    transposed_keys: (1.0, False),
}


def attention_of(graph):
    (node,) = [node for node in graph.nodes if node.op == "attention"]
    return node


@pytest.mark.parametrize("form", FORMS, ids=[form.__name__ for form in FORMS])
def test_attention_is_recognised_with_scale_and_causal_mask(form):
    graph = graph_of(form, *QKV)
    ops = check_pass(graph, apply, close=ATTENTION)
    assert "softmax" not in ops and "matmul" not in ops
    node = attention_of(graph)
    assert (node.attrs["scale"], node.attrs["causal"]) == FORMS[form]
    assert len(node.inputs) == 3


@pytest.mark.parametrize("scale", [None, 0.5])
def test_a_padding_mask_becomes_a_bias(scale):
    def build(b, q, k, v, mask):
        scores = product(b, q, k)
        scores = scores if scale is None else b.op("mul", scores, scale)
        return weigh(b, b.op("add", scores, mask), v)

    graph = graph_of(build, *QKV, f"float32[{B},1,1,{S}]")
    assert "softmax" not in check_pass(graph, apply, close=ATTENTION)
    node = attention_of(graph)
    assert node.inputs[3] is graph.inputs[3]
    assert node.attrs["scale"] == (scale or 1.0)


def test_causal_and_padding_masks_go_together():
    def build(b, q, k, v, mask):
        scores = b.op("add", b.op("mul", product(b, q, k), 0.5), causal_mask())
        return weigh(b, b.op("add", scores, mask), v)

    graph = graph_of(build, *QKV, f"float32[{B},1,1,{S}]")
    check_pass(graph, apply, close=ATTENTION)
    assert attention_of(graph).attrs["causal"]
    assert len(attention_of(graph).inputs) == 4


def test_a_constant_mask_that_is_not_causal_stays_a_bias():
    def build(b, q, k, v):
        return weigh(b, b.op("add", product(b, q, k), causal_mask(hidden=-3.0)), v)

    graph = graph_of(build, *QKV)
    check_pass(graph, apply, close=ATTENTION)
    assert not attention_of(graph).attrs["causal"]
    assert len(attention_of(graph).inputs) == 4


def test_a_causal_mask_of_fewer_queries_than_keys_lets_the_last_see_all():
    def build(b, q, k, v):
        return weigh(b, b.op("add", product(b, q, k), causal_mask(2, S)), v)

    graph = graph_of(build, f"float32[{B},{A},2,{D}]", HEADS, HEADS)
    check_pass(graph, apply, close=ATTENTION)
    assert attention_of(graph).attrs["causal"]


def test_transposes_of_the_operands_are_passed_by():
    def build(b, *rows):
        q, k, v = (b.op("transpose", row, permutation=SWAP) for row in rows)
        return b.op("transpose", scaled(b, q, k, v), permutation=SWAP)

    graph = graph_of(build, *ROWS)
    check_pass(graph, apply, close=ATTENTION)
    assert attention_of(graph).inputs == graph.inputs


def wanted_weights(b, q, k, v):
    weights = b.op("softmax", product(b, q, k))
    return b.op("matmul", weights, v, transpose_a=False, transpose_b=False), weights


def dropped_weights(b, q, k, v):
    weights = b.op("mul", b.op("softmax", product(b, q, k)), np.float32(2) * np.ones((S, S), "f4"))
    return b.op("matmul", weights, v, transpose_a=False, transpose_b=False)


def scaled_after_the_mask(b, q, k, v):
    masked = b.op("add", product(b, q, k), causal_mask(hidden=-3.0))
    return weigh(b, b.op("mul", masked, 0.5), v)


def not_scores(b, q, k, v):
    return weigh(b, b.op("tanh", product(b, q, k)), v)


OTHERS = [wanted_weights, dropped_weights, scaled_after_the_mask, not_scores]


@pytest.mark.parametrize("form", OTHERS, ids=[form.__name__ for form in OTHERS])
def test_what_the_op_cannot_say_stays(form):
    ops = check_pass(graph_of(form, *QKV), apply, close=ATTENTION)
    assert "attention" not in ops


def test_a_trained_mask_stays():
    """The op gives a bias no gradient."""

    def build(b, q, k, v, table):
        return weigh(b, b.op("add", product(b, q, k), b.op("neg", table)), v)

    graph = graph_of(build, *QKV, f"float32[1,{A},{S},{S}]")
    fuse_attention(graph, {graph.inputs[3]})
    assert not [node for node in graph.nodes if node.op == "attention"]
