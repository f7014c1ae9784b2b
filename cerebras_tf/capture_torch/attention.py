"""The rule of scaled dot-product attention.

Letters: B batch, A heads, S query length, T key length, D head width. torch has [B, A, S, D], the
IR [B, S, A, D].
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.capture_torch.shapes import transposed
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops.shape import reshape
from cerebras_tf.ops.sizes import counted

_SWAP = (0, 2, 1, 3)


@lowers("scaled_dot_product_attention")
def _attention(
    low: Lowering,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Optional[Value],
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
    enable_gqa: bool,
) -> Value:
    width = query.shape[-1]
    if not isinstance(width, int) or query.type.rank != 4:
        raise UnsupportedOpError(
            "scaled_dot_product_attention: query must be [batch, heads, length, width] of a fixed "
            f"width. Received: {query!r}. Use matmul and softmax."
        )
    if is_causal and query.shape[2] != key.shape[2]:
        raise UnsupportedOpError(
            "scaled_dot_product_attention: with is_causal, query and key must be equally long. "
            f"Received: {query!r} and {key!r}. Pass attn_mask."
        )
    factor = 1 / math.sqrt(width) if scale is None else scale
    bias = None if attn_mask is None else _bias(low, attn_mask, query.dtype)
    if key.shape[1] != value.shape[1]:
        key, value = (_repeated(low, x, query) for x in (key, value))
    if value.shape[-1] != width or (bias is not None and low.is_trained(bias)):
        key, value = (_repeated(low, x, query) for x in (key, value))
        result = _composed(low, (query, key, value), bias, factor, dropout_p, is_causal)
    else:
        result = _fused(low, (query, key, value), bias, factor, dropout_p, is_causal)
    if attn_mask is not None and attn_mask.dtype == "bool":
        return _without_empty_rows(low, result, attn_mask)
    return result


def _fused(
    low: Lowering,
    operands: tuple[Value, Value, Value],
    bias: Optional[Value],
    scale: float,
    dropout: float,
    causal: bool,
) -> Value:
    given = [transposed(low, x, _SWAP) for x in operands]
    attrs = {"scale": scale, "causal": causal}
    if bias is not None:
        given.append(bias)
    if dropout:
        given += low.draw()
        attrs.update(rate=float(np.float32(dropout)), kept_scale=1 / (1 - dropout))
    return transposed(low, low.b.multi("attention", *given, **attrs)[0], _SWAP)


def _composed(
    low: Lowering,
    operands: tuple[Value, Value, Value],
    bias: Optional[Value],
    scale: float,
    dropout: float,
    causal: bool,
) -> Value:
    """Attention whose bias has a gradient, which the fused op has not."""
    b, (query, key, value) = low.b, operands
    if dropout:
        raise UnsupportedOpError(
            "scaled_dot_product_attention: dropout_p must be 0 with a trained attn_mask. "
            f"Received: {dropout}."
        )
    scores = b.op("matmul", query, key, transpose_a=False, transpose_b=True)
    scores = b.op("mul", scores, scale)
    if bias is not None:
        scores = b.op("add", scores, bias)
    if causal:
        column = reshape(b, counted(b, query.shape[2] or 0, 1, "int64"), (query.shape[2], 1))
        seen = b.op("greater_equal", column, counted(b, key.shape[2] or 0, 1, "int64"))
        least = b.constant(float(np.finfo(np.float32).min), scores.dtype)
        scores = b.op("select", seen, scores, least)
    weights = b.op("softmax", scores)
    return b.op("matmul", weights, value, transpose_a=False, transpose_b=False)


def _repeated(low: Lowering, x: Value, query: Value) -> Value:
    """Heads of key or value, each repeated for a group of the query's heads."""
    if x.shape[1] == query.shape[1]:
        return x
    batch, heads, length, width = x.shape
    groups = query.shape[1] // heads  # type: ignore[operator]
    column = reshape(low.b, x, (batch, heads, 1, length, width))
    copies = low.b.op("broadcast_to", column, shape=(batch, heads, groups, length, width))
    return reshape(low.b, copies, (batch, query.shape[1], length, width))


def _rank4(low: Lowering, x: Value) -> Value:
    return reshape(low.b, x, (1,) * (4 - x.type.rank) + x.shape)


def _bias(low: Lowering, mask: Value, dtype: str) -> Value:
    """What is added to the scores; a bool mask is True where keys are seen."""
    mask = _rank4(low, mask)
    if mask.dtype != "bool":
        return low.value(mask, dtype)
    least = float(np.finfo(np.float32).min)
    return low.b.op("select", mask, low.b.constant(0.0, dtype), low.b.constant(least, dtype))


def _without_empty_rows(low: Lowering, result: Value, mask: Value) -> Value:
    """torch returns 0 for queries that see no key."""
    b, seen = low.b, _rank4(low, mask)
    if seen.node is not None and seen.node.op == "broadcast_to":
        seen = _rank4(low, seen.node.inputs[0])
    if seen.constant is not None and seen.constant.any(axis=-1).all():
        return result
    sees = b.op("any", seen, axes=(3,), keepdims=True)
    return b.op("select", sees, result, b.constant(0.0, result.dtype))
