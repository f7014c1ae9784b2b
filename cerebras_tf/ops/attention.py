"""Scaled dot-product attention, padded and packed, as one op that does not store its scores.

Letters: B batch, S query length, T key length, A heads of queries, G heads of keys and values (each
is read by A / G consecutive heads of queries), D head width. In packed tensors, the real
tokens of all sequences are concatenated: sequence b has the rows offsets[b] to offsets[b + 1] - 1.
There T and U count the tokens of all queries and of all keys, and S and K are the padded lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Shape, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, no_second_derivative
from cerebras_tf.ops.inference import broadcast_shapes, require_same_dtype
from cerebras_tf.ops.random import can_draw_from
from cerebras_tf.ops.registry import Attrs, Flops, Products, always, element_flops, register

DROPOUT = ("rate", "kept_scale")
# For every score: a random number as of random_uniform, a product and a selection.
DROPOUT_FLOPS = 22


def _scores_shape(query: Value, key: Value) -> Shape:
    """[B, A, S, T]"""
    return (query.shape[0], query.shape[2], query.shape[1], key.shape[1])


def _check(query: Value, key: Value, value: Value, others: Sequence[Value], attrs: Attrs) -> None:
    bias = _without_draws(others, attrs)
    operands = [query, key, value, *bias]
    require_same_dtype(operands)
    if any(item.type.rank != 4 for item in (query, key, value)):
        raise GraphError(
            "attention: query, key and value must be [batch, length, heads, width]. "
            f"Received: {operands}. Reshape or transpose them."
        )
    batch, length, heads, width = zip(query.shape, key.shape, value.shape)
    for dims in (batch, length[1:], heads[1:], width):
        known = {dim for dim in dims if dim is not None}
        if len(known) > 1 or not _are_grouped(*heads[:2]):
            raise GraphError(
                "attention: batch and width must be equal, key and value equally long with equally "
                "many heads, and the query must have a multiple of these. "
                f"Received: {operands}. Repeat or pad them."
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


def _are_grouped(heads: Optional[Size], key_heads: Optional[Size]) -> bool:
    """Whether every head of a key may be read by equally many heads of the query."""
    if isinstance(heads, int) and isinstance(key_heads, int):
        return key_heads > 0 and heads % key_heads == 0
    return None in (heads, key_heads) or heads == key_heads


def _without_draws(others: Sequence[Value], attrs: Attrs) -> Sequence[Value]:
    """The bias, if any: with dropout, the last two operands are the step and the seeds."""
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


def _drops(attrs: Attrs) -> bool:
    return "rate" in attrs


def _infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """attention(query [B,S,A,D], key [B,T,G,D], value [B,T,G,D] [, bias]
    [, step, seeds]; scale, causal [, rate, kept_scale] [, compute]) -> out [B,S,A,D], lse [B,A,S]

    out = softmax(scale query key^T + bias) value per head; bias broadcasts to [B,A,S,T]. With
    causal, query i sees the keys up to i + T - S: the last query sees all. lse is logsumexp of each
    row of scores. With a rate (and then a step and seeds), the weights of the mean become
    where(u >= rate, softmax kept_scale, 0), u being the float32 numbers of
    random_uniform(step, seeds; shape=[B,A,S,T]); lse remains that of the softmax. With
    compute="bfloat16", here and in the ops below, operands of products are rounded to bfloat16.
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


def _grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """attention_grad(dout, query, key, value, out, lse [, bias] [, step, seeds]; as
    attention)
    -> dquery [B,S,A,D], dkey [B,T,G,D], dvalue [B,T,G,D]
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


def _products(first: int, packed: bool = False) -> Products:
    """Sizes of the products of all heads; a single head's lengths are counted once."""

    def products(node: Node) -> tuple[Optional[Size], ...]:
        query, key = node.inputs[first : first + 2]
        if packed:
            others = key.type.with_shape(key.shape[:2])
            return node.attrs["lengths"][0], key.shape[2], others.size
        others = key.type.with_shape(key.shape[:3])
        return query.shape[1], key.shape[3], others.size if others.is_bounded else None

    return products


def _check_packed(operands: Sequence[Value], attrs: Attrs) -> None:
    query, key, value, queries, keys, *drawn = operands
    require_same_dtype([query, key, value])
    ranks = [item.type.rank for item in (query, key, value, queries, keys)]
    same = key.shape[1:] == value.shape[1:] and query.shape[2:] == key.shape[2:]
    if ranks != [3, 3, 3, 1, 1] or not same or not _are_grouped(query.shape[1], key.shape[1]):
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


def _packed_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """packed_attention(query [T,A,D], key [U,G,D], value [U,G,D], offsets_q [B+1], offsets_k [B+1]
    [, step, seeds]; scale, causal, lengths [, rate, kept_scale] [, compute])
    -> out [T,A,D], lse [A,T]

    `attention` of each sequence's rows. lengths are (S, K): with dropout, the random numbers are
    those of the padded scores [B,A,S,K] at the positions of the real tokens. With causal, query i
    of a sequence sees its keys up to i, and S equals K.
    """
    _check_packed(inputs, attrs)
    query = inputs[0]
    tokens, heads, _ = query.shape
    return [query.type, query.type.with_shape((heads, tokens))]


def _packed_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
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


def _packed_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """packed_attention_grad(dout, query, key, value, out, lse, offsets_q, offsets_k
    [, step, seeds]; as packed_attention) -> dquery [T,A,D], dkey [U,G,D], dvalue [U,G,D]
    """
    _check_packed([*inputs[1:4], *inputs[6:]], attrs)
    return [value.type for value in inputs[1:4]]


def _packed_flops(first: int, products: int) -> Flops:
    """As for attention, on sequences of mean length; with symbols, on padded ones."""

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

    Rows of the numbers that random_uniform(step, seeds; shape, dtype) draws, counted by the first
    `axes` axes of shape. Result: [1,T,...] with two axes, [T,...] with one.
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


register(
    "attention",
    _infer,
    _vjp,
    rows=rows.attention(0),
    draws=_drops,
    flops=_flops(0, 2),
    products=_products(0),
)
register(
    "attention_grad",
    _grad_infer,
    no_second_derivative,
    rows=rows.attention(1),
    draws=_drops,
    flops=_flops(1, 5),
    products=_products(1),
)
register(
    "packed_attention",
    _packed_infer,
    _packed_vjp,
    rows=rows.across,
    draws=_drops,
    flops=_packed_flops(0, 2),
    products=_products(0, packed=True),
)
register(
    "packed_attention_grad",
    _packed_grad_infer,
    no_second_derivative,
    rows=rows.across,
    draws=_drops,
    flops=_packed_flops(1, 5),
    products=_products(1, packed=True),
)
register(
    "random_uniform_rows",
    _random_rows_infer,
    rows=rows.across,
    draws=always,
    differentiable=False,
    flops=element_flops(20),
)
