"""Ops on packed tokens: sequences one behind the other, without padding between them.

Letters: B sequences, S and K their padded lengths (of queries, of keys), T real tokens of all
queries and U of all keys, A heads, D head width. Sequence b has the rows offsets[b] to
offsets[b + 1] - 1 of a packed tensor. Reading packed rows and writing them back needs no op of its
own: `gather` and `rows_update` do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.attention import DROPOUT, DROPOUT_FLOPS
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.inference import require_same_dtype
from cerebras_tf.ops.random import can_draw_from
from cerebras_tf.ops.registry import Flops, always, element_flops, register
from cerebras_tf.ops.second_derivatives import missing_second_derivative

Attrs = dict[str, Any]
Cotangents = list[Optional[Value]]


def _drops(attrs: Attrs) -> bool:
    return "rate" in attrs


def _check(operands: Sequence[Value], attrs: Attrs) -> None:
    query, key, value, queries, keys, *drawn = operands
    require_same_dtype([query, key, value])
    ranks = [item.type.rank for item in (query, key, value, queries, keys)]
    if ranks != [3, 3, 3, 1, 1] or not query.shape[1:] == key.shape[1:] == value.shape[1:]:
        raise GraphError(
            "packed_attention: query, key and value must be [tokens, heads, width], offsets "
            f"vectors. Received: {list(operands)}. Reshape them."
        )
    given = [name for name in DROPOUT if name in attrs]
    if len(given) == 1 or bool(given) is not bool(drawn) or (drawn and not can_draw_from(drawn)):
        raise GraphError(
            f"packed_attention: dropout needs {', '.join(DROPOUT)}, and step and seeds as last "
            f"operands. Received: {attrs}, {list(operands)}. Give all or none."
        )


def _infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """packed_attention(query [T,A,D], key [U,A,D], value [U,A,D], offsets_q [B+1], offsets_k [B+1]
    [, step, seeds]; scale, causal, lengths [, rate, kept_scale]) -> out [T,A,D], lse [A,T]

    For every sequence, what `attention` is of its own rows. lengths are (S, K): with dropout the
    numbers are those of the padded scores [B,A,S,K], taken at the places of the real tokens. With
    causal, query i of a sequence sees its keys up to i, and S equals K.
    """
    _check(inputs, attrs)
    query = inputs[0]
    tokens, heads, _ = query.shape
    return [query.type, query.type.with_shape((heads, tokens))]


def _vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    if dys[1] is not None:
        raise GraphError(
            "packed_attention: only its first output may be differentiated. "
            f"Received: a cotangent for lse of {node!r}. Do not use lse in a loss."
        )
    if dys[0] is None:
        return [None] * len(node.inputs)
    query, key, value, *others = node.inputs
    operands = (dys[0], query, key, value, *node.outputs, *others)
    found = b.multi("packed_attention_grad", *operands, **node.attrs)
    return [*found, *(None for _ in others)]


def _grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """packed_attention_grad(dout, query, key, value, out, lse, offsets_q, offsets_k
    [, step, seeds]; as packed_attention) -> dquery [T,A,D], dkey [U,A,D], dvalue [U,A,D]
    """
    _check([*inputs[1:4], *inputs[6:]], attrs)
    return [value.type for value in inputs[1:4]]


def _twice(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    raise missing_second_derivative(node)


def _flops(first: int, products: int) -> Flops:
    """As of attention, of sequences that are all as long as their mean; at most of padded ones."""

    def flops(node: Node) -> Size:
        query, key = node.inputs[first : first + 2]
        offsets = node.inputs[first + (5 if first else 3)]
        tokens, keys, ends = query.type.size, key.shape[0], offsets.shape[0]
        rows = query.type.with_shape(query.shape[:2]).size
        work = 2 * products * tokens + (DROPOUT_FLOPS * rows if _drops(node.attrs) else 0)
        if isinstance(work, int) and isinstance(keys, int) and isinstance(ends, int):
            total: Size = work * keys // max(ends - 1, 1)
        else:
            total = work * node.attrs["lengths"][1]
        return total // 2 if node.attrs["causal"] and isinstance(total, int) else total

    return flops


def _random_rows_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """random_uniform_rows(rows [T], step, seeds; shape, axes, dtype)

    Of the numbers that random_uniform(step, seeds; shape, dtype) draws, the rows named, counted by
    the first `axes` axes of shape. Result: [1,T,...] with two axes, [T,...] with one.
    """
    chosen, *drawn = inputs
    axes, shape = attrs["axes"], tuple(attrs["shape"])
    if chosen.type.rank != 1 or not can_draw_from(drawn) or axes not in (1, 2):
        raise GraphError(
            "random_uniform_rows: operands must be a vector of rows, the step and the seeds, and "
            f"axes 1 or 2. Received: {list(inputs)}, {attrs}. Correct them."
        )
    dims = (*(1,) * (axes - 1), chosen.shape[0], *shape[axes:])
    return [TensorType(attrs["dtype"], dims)]


register("packed_attention", _infer, _vjp, rows=rows.across, draws=_drops, flops=_flops(0, 2))
register(
    "packed_attention_grad", _grad_infer, _twice, rows=rows.across, draws=_drops, flops=_flops(1, 5)
)
register(
    "random_uniform_rows",
    _random_rows_infer,
    rows=rows.across,
    draws=always,
    differentiable=False,
    flops=element_flops(20),
)
