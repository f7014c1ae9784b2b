"""Scaled dot-product attention as one op, so that scores need not be stored.

Letters: B batch, S query length, T key length, A heads, D head width. Projections stay outside;
dropout of the probabilities does not, for it would store them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Shape, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.inference import broadcast_shapes, require_same_dtype
from cerebras_tf.ops.random import can_draw_from
from cerebras_tf.ops.registry import Flops, register
from cerebras_tf.ops.second_derivatives import missing_second_derivative

Cotangents = list[Optional[Value]]
DROPOUT = ("rate", "kept_scale")
# For every score: a random number, as random_uniform counts it, a product and a choice.
DROPOUT_FLOPS = 22


def _scores_shape(query: Value, key: Value) -> Shape:
    """[B, A, S, T]"""
    return (query.shape[0], query.shape[2], query.shape[1], key.shape[1])


def _check(
    query: Value, key: Value, value: Value, others: Sequence[Value], attrs: dict[str, Any]
) -> None:
    bias = _without_draws(others, attrs)
    operands = [query, key, value, *bias]
    require_same_dtype(operands)
    if any(item.type.rank != 4 for item in (query, key, value)):
        raise GraphError(
            "attention: query, key and value must be [batch, length, heads, width]. "
            f"Received: {operands}. Reshape or transpose them."
        )
    batch, length, heads, width = zip(query.shape, key.shape, value.shape)
    for dims in (batch, length[1:], heads, width):
        known = {dim for dim in dims if dim is not None}
        if len(known) > 1:
            raise GraphError(
                "attention: batch, heads and width must be equal, and key and value equally "
                f"long. Received: {operands}. Repeat or pad them."
            )
    for item in bias:
        scores = _scores_shape(query, key)
        broadcast = broadcast_shapes([item.shape, scores])
        if len(broadcast) != 4 or any(
            b != s for b, s in zip(broadcast, scores) if None not in (b, s)
        ):
            raise GraphError(
                "attention: the bias must broadcast to [batch, heads, queries, keys]. "
                f"Received: {operands}. Expand it."
            )


def _without_draws(others: Sequence[Value], attrs: dict[str, Any]) -> Sequence[Value]:
    """The bias, if any: with dropout, the last operands are the step and the seeds."""
    given = [name for name in DROPOUT if name in attrs]
    if not given:
        return others
    drawn = can_draw_from(others[-2:])
    if len(given) < len(DROPOUT) or not drawn or not 0 <= attrs["rate"] < 1:
        raise GraphError(
            f"attention: dropout needs {', '.join(DROPOUT)}, a rate in [0, 1), and the step, an "
            "int64 scalar, and the seeds, int64[2], as last operands. "
            f"Received: {attrs}, {others}. Give all or none."
        )
    return others[:-2]


def _drops(attrs: dict[str, Any]) -> bool:
    return "rate" in attrs


def _infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """attention(query [B,S,A,D], key [B,T,A,D], value [B,T,A,D] [, bias]
    [, step, seeds]; scale, causal [, rate, kept_scale]) -> out [B,S,A,D], lse [B,A,S]

    out = softmax(scale query key^T + bias) value per head; bias broadcasts to [B,A,S,T]. With
    causal, query i sees the keys up to i + T - S: the last query sees all. lse is the log of the
    sum of the exponentials of each row of scores. With a rate (and then a step and seeds), the
    weights of the mean become where(u >= rate, softmax kept_scale, 0), u being the float32
    numbers of random_uniform(step, seeds; shape=[B,A,S,T]); lse stays that of the softmax.
    """
    query, key, value = inputs[:3]
    _check(query, key, value, inputs[3:], attrs)
    return [query.type, query.type.with_shape(_scores_shape(query, key)[:3])]


def _vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    if dys[1] is not None:
        raise GraphError(
            "attention: only its first output may be differentiated. "
            f"Received: a cotangent for lse of {node!r}. Do not use lse in a loss."
        )
    if dys[0] is None:
        return [None] * len(node.inputs)
    query, key, value = node.inputs[:3]
    out, lse = node.outputs
    others = node.inputs[3:]
    operands = (dys[0], query, key, value, out, lse, *others)
    return [*b.multi("attention_grad", *operands, **node.attrs), *(None for _ in others)]


def _twice(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    raise missing_second_derivative(node)


def _grad_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """attention_grad(dout, query, key, value, out, lse [, bias] [, step, seeds]; as
    attention)
    -> dquery [B,S,A,D], dkey [B,T,A,D], dvalue [B,T,A,D]
    """
    query, key, value = inputs[1:4]
    _check(query, key, value, inputs[6:], attrs)
    return [query.type, key.type, value.type]


def _flops(first: int, products: int) -> Flops:
    """2 B A S T D for every matrix product; half where a causal mask hides half the scores."""

    def flops(node: Node) -> Size:
        query, key = node.inputs[first : first + 2]
        keys = key.type.with_shape(key.shape[1:2]).size
        total = 2 * products * query.type.size * keys
        if "rate" in node.attrs:
            scores = query.type.with_shape(query.shape[:3]).size * keys
            total = total + DROPOUT_FLOPS * scores
        return total // 2 if node.attrs.get("causal") else total

    return flops


register("attention", _infer, _vjp, rows=rows.attention(0), draws=_drops, flops=_flops(0, 2))
register(
    "attention_grad", _grad_infer, _twice, rows=rows.attention(1), draws=_drops, flops=_flops(1, 5)
)
