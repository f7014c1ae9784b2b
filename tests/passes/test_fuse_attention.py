"""Attention is recognised with its scale and masks, and not where its weights are needed.

Letters: B batch, A heads, S query length, T key length, D head width.
"""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_attention import fuse_attention, group_heads
from tests.graphs import check_pass, graph_of, random_inputs, run_plain

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


def test_values_of_another_width_than_keys_stay():
    apart = graph_of(plain, HEADS, HEADS, f"float32[{B},{A},{S},{D + 1}]")
    assert "attention" not in check_pass(apart, apply, close=ATTENTION)


def test_a_trained_mask_stays():
    """The op gives a bias no gradient."""

    def build(b, q, k, v, table):
        return weigh(b, b.op("add", product(b, q, k), b.op("neg", table)), v)

    graph = graph_of(build, *QKV, f"float32[1,{A},{S},{S}]")
    fuse_attention(graph, {graph.inputs[3]})
    assert not [node for node in graph.nodes if node.op == "attention"]


def test_a_mask_that_a_gradient_is_taken_by_stays():
    def build(b, q, k, v, mask):
        y = weigh(b, b.op("add", product(b, q, k), b.op("neg", mask)), v)
        return b.multi("gradient", y, y, mask, ys=1, dys=(True,), xs=1)

    graph = graph_of(build, *QKV, f"float32[1,{A},{S},{S}]")
    fuse_attention(graph, set())
    assert not [node for node in graph.nodes if node.op == "attention"]


def test_scores_divided_by_zero_stay():
    def build(b, q, k, v):
        return weigh(b, b.op("div", product(b, q, k), 0.0), v)

    graph = graph_of(build, *QKV)
    fuse_attention(graph, set())
    assert not [node for node in graph.nodes if node.op == "attention"]


RATE, KEPT_SCALE = np.float32(0.3), np.float32(1.4)
SCORES = (B, A, S, S)


def drawn(b, step, shape=SCORES):
    return b.op("random_uniform", step, np.array([7, 9]), shape=shape, dtype="float32")


def selected(b, x, numbers):
    keep = b.op("greater_equal", numbers, RATE)
    return b.op("select", keep, b.op("mul", x, KEPT_SCALE), np.float32(0))


def multiplied(b, x, numbers):
    keep = b.op("cast", b.op("greater_equal", numbers, RATE), dtype="float32")
    return b.op("mul", b.op("mul", KEPT_SCALE, x), keep)


def unscaled(b, x, numbers):
    return b.op("select", b.op("greater_equal", numbers, RATE), x, np.float32(0))


def dropped_attention(drop):
    def build(b, q, k, v, step):
        weights = b.op("softmax", b.op("add", product(b, q, k), causal_mask()))
        weights = drop(b, weights, drawn(b, step))
        return b.op("matmul", weights, v, transpose_a=False, transpose_b=False)

    return build


@pytest.mark.parametrize("drop", [selected, multiplied, unscaled])
def test_dropout_of_the_weights_becomes_part_of_the_op(drop):
    graph = graph_of(dropped_attention(drop), *QKV, "int64[]")
    ops = check_pass(graph, apply, close=ATTENTION)
    assert sorted(ops) == ["attention", *["transpose"] * 4]
    attrs = attention_of(graph).attrs
    assert attrs["rate"] == RATE
    assert attrs["kept_scale"] == (1.0 if drop is unscaled else KEPT_SCALE)
    step, seeds = attention_of(graph).inputs[-2:]
    assert step is graph.inputs[3]
    assert seeds.constant.tolist() == [7, 9]


def test_fused_dropout_drops_the_same_weights():
    """Values are unit vectors, so that the output is the weights."""
    square = f"float32[{B},{A},{S},{S}]"
    plain, fused = (
        graph_of(dropped_attention(selected), square, square, square, "int64[]") for _ in range(2)
    )
    apply(fused)
    assert attention_of(fused).attrs["rate"] == RATE
    arrays = random_inputs(plain)
    arrays[2] = np.broadcast_to(np.eye(S, dtype=np.float32), SCORES)
    for step in range(3):
        arrays[3] = np.array(step, np.int64)
        (wanted,), (found,) = (run_plain(graph, arrays) for graph in (plain, fused))
        np.testing.assert_array_equal(found == 0, wanted == 0)
        np.testing.assert_allclose(found, wanted, *ATTENTION)
        behind = (wanted == 0).sum() - B * A * S * (S - 1) // 2
        assert 0 < behind < B * A * S * (S + 1) // 2


def test_gradients_go_through_fused_dropout():
    def build(b, q, k, v, step, dy):
        y = dropped_attention(selected)(b, q, k, v, step)
        return b.multi("gradient", y, dy, q, k, v, ys=1, dys=(True,), xs=3)

    results = []
    for fuse in (False, True):
        graph = graph_of(build, *QKV, "int64[]", HEADS)
        if fuse:
            apply(graph)
            attention_of(graph)
        differentiate(graph)
        results.append(run_plain(graph, random_inputs(graph)))
    for wanted, found in zip(*results):
        np.testing.assert_allclose(found, wanted, *ATTENTION)


def numbers_used_elsewhere(b, q, k, v, step):
    numbers = drawn(b, step)
    weights = selected(b, b.op("softmax", product(b, q, k)), numbers)
    out = b.op("matmul", weights, v, transpose_a=False, transpose_b=False)
    return out, b.op("sqrt", numbers)


def dropped_weights_wanted(b, q, k, v, step):
    weights = selected(b, b.op("softmax", product(b, q, k)), drawn(b, step))
    return b.op("matmul", weights, v, transpose_a=False, transpose_b=False), weights


def weights_wanted_before_dropout(b, q, k, v, step):
    weights = b.op("softmax", product(b, q, k))
    dropped = selected(b, weights, drawn(b, step))
    return b.op("matmul", dropped, v, transpose_a=False, transpose_b=False), weights


def one_number_for_all_heads(b, q, k, v, step):
    weights = selected(b, b.op("softmax", product(b, q, k)), drawn(b, step, (B, 1, S, S)))
    return b.op("matmul", weights, v, transpose_a=False, transpose_b=False)


def watched_inside_dropout(b, q, k, v, step):
    scaled_up = b.op("mul", b.op("softmax", product(b, q, k)), KEPT_SCALE)
    keep = b.op("greater_equal", drawn(b, step), RATE)
    weights = b.op("select", keep, scaled_up, np.float32(0))
    y = b.op("matmul", weights, v, transpose_a=False, transpose_b=False)
    return b.multi("gradient", y, y, scaled_up, ys=1, dys=(True,), xs=1)


def replaced_by_one(b, q, k, v, step):
    keep = b.op("greater_equal", drawn(b, step), RATE)
    weights = b.op("select", keep, b.op("softmax", product(b, q, k)), np.float32(1))
    return b.op("matmul", weights, v, transpose_a=False, transpose_b=False)


@pytest.mark.parametrize(
    "form",
    [
        numbers_used_elsewhere,
        dropped_weights_wanted,
        weights_wanted_before_dropout,
        one_number_for_all_heads,
        watched_inside_dropout,
        replaced_by_one,
    ],
)
def test_dropout_that_the_op_cannot_say_stays(form):
    graph = graph_of(form, *QKV, "int64[]")
    apply(graph)
    assert not [node for node in graph.nodes if node.op == "attention"]


GROUPS = 3 * A


@pytest.mark.parametrize("swapped", [False, True])
def test_repeated_heads_of_keys_and_values_are_read_where_they_are(swapped):
    """As [B, A, S, D], which is transposed then, and as [B, S, A, D]."""

    def build(b, q, *pair):
        repeated = []
        for x in pair:
            at = 2 if swapped else 3
            column = b.op("reshape", x, shape=(*x.shape[:at], 1, *x.shape[at:]))
            copies = b.op("broadcast_to", column, shape=(*x.shape[:at], 3, *x.shape[at:]))
            shape = (*x.shape[: at - 1], GROUPS, *x.shape[at:])
            heads = b.op("reshape", copies, shape=shape)
            repeated.append(b.op("transpose", heads, permutation=SWAP) if swapped else heads)
        return b.multi("attention", q, *repeated, scale=0.5, causal=True)[0]

    given = HEADS if swapped else ROWS[0]
    graph = graph_of(build, f"float32[{B},{S},{GROUPS},{D}]", given, given)
    assert "broadcast_to" not in check_pass(graph, group_heads, close=ATTENTION)
    assert [value.shape for value in attention_of(graph).inputs[1:]] == [(B, S, A, D)] * 2


def test_heads_of_keys_alone_that_are_repeated_stay():
    def build(b, q, k, v):
        column = b.op("reshape", k, shape=(B, S, A, 1, D))
        copies = b.op("broadcast_to", column, shape=(B, S, A, 3, D))
        keys = b.op("reshape", copies, shape=(B, S, GROUPS, D))
        return b.multi("attention", q, keys, v, scale=0.5, causal=True)[0]

    wide = f"float32[{B},{S},{GROUPS},{D}]"
    assert "broadcast_to" in check_pass(graph_of(build, wide, ROWS[0], wide), group_heads)
