"""Compiled attention, float32: every head of a batch, spread over threads.

Letters: B batch, S query length, T key length, A heads, D head width. What happens within a head
stands in compiled_heads.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels.attention import Dropout, bias_and_dropout
from cerebras_tf.kernels.compiled_heads import (
    AllDrops,
    AllRows,
    attend_all,
    attend_grad_all,
    block_bytes,
)
from cerebras_tf.kernels.compiled_layout import floats_are_float32, ordinary
from cerebras_tf.kernels.compiled_random import stream_of
from cerebras_tf.kernels.compiled_threads import for_rows
from cerebras_tf.kernels.registry import Scratch, compiled

F = np.float32
Out = tuple[np.ndarray, ...]


def _rows(
    bias: Optional[np.ndarray], keys: int, scale: float, causal: bool, lse: np.ndarray
) -> AllRows:
    """Rows of scores of all heads, with a bias that broadcasts to [B, A, S, T], or none."""
    if bias is None:
        return AllRows(F(scale), causal, np.empty((0, 0), F), 0, 0, 0, lse)
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    if bias.shape[3] != keys:
        bias = np.broadcast_to(bias, (*bias.shape[:3], keys))
    batch, heads, queries = bias.shape[:3]
    steps = (
        heads * queries if batch > 1 else 0,
        queries if heads > 1 else 0,
        1 if queries > 1 else 0,
    )
    return AllRows(F(scale), causal, ordinary(bias).reshape(-1, keys), *steps, lse)


def _heads_first(array: np.ndarray) -> np.ndarray:
    """[B, S, A, D] as a view [B, A, S, D] whose last axis is contiguous."""
    if array.strides[3] != array.itemsize and array.shape[3] > 1:
        array = np.ascontiguousarray(array)
    return array.transpose(0, 2, 1, 3)


def _drops(dropout: Optional[Dropout], shape: tuple[int, int, int, int]) -> Optional[AllDrops]:
    """Dropout of all heads; shape is [B, A, S, T]."""
    if dropout is None:
        return None
    stream = stream_of(dropout.step, dropout.seeds, math.prod(shape))
    return AllDrops(F(dropout.rate), F(dropout.kept_scale), stream, shape[2], shape[3])


def _scratch(query: Any, key: Any, *others: Any, **attrs: Any) -> Scratch:
    """One block of scores a thread."""
    return Scratch(0, block_bytes(query.shape[1], key.shape[1]))


def _scratch_of_gradient(dout: Any, *operands: Any, **attrs: Any) -> Scratch:
    return Scratch(0, 2 * _scratch(*operands, **attrs).a_thread)


@compiled("attention", supports=floats_are_float32, scratch=_scratch)
def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *others: np.ndarray,
    out: Out,
    scale: float,
    causal: bool,
    **dropout: Any,
) -> None:
    """attention into out [B, S, A, D] and lse [B, A, S]."""
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    shape = batch, heads, queries, keys
    bias, dropped = bias_and_dropout(others, dropout)
    rows, drops = _rows(bias, keys, scale, causal, out[1]), _drops(dropped, shape)
    operands = tuple(_heads_first(x) for x in (q, k, v, out[0]))
    for_rows(attend_all, batch * heads, 4 * math.prod(shape), operands, rows, drops)


@compiled("attention_grad", supports=floats_are_float32, scratch=_scratch_of_gradient)
def attention_grad(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    y: np.ndarray,
    lse: np.ndarray,
    *others: np.ndarray,
    out: Out,
    scale: float,
    causal: bool,
    **dropout: Any,
) -> None:
    """attention_grad into dq, dk, dv, each [B, S or T, A, D]; y, attention's out, is not read."""
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    shape = batch, heads, queries, keys
    bias, dropped = bias_and_dropout(others, dropout)
    rows, drops = _rows(bias, keys, scale, causal, ordinary(lse)), _drops(dropped, shape)
    operands = tuple(_heads_first(x) for x in (dout, q, k, v, *out))
    for_rows(attend_grad_all, batch * heads, 8 * math.prod(shape), operands, rows, drops)
