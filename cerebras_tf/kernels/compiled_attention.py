"""Compiled attention, float32: every head of a batch, spread over threads.

Letters: B batch, S query length, T key length, A heads, D head width. What happens within a head
stands in compiled_heads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.attention import bias_and_dropout
from cerebras_tf.kernels.compiled_flash_attention import (
    AllDrops,
    Kernels,
    Operands,
    Rows,
    attend,
    attend_grad,
    attend_grad_head,
    attend_head,
    block_bytes,
    block_size,
    drop_of,
    drop_of_head,
    drops_of,
    run_heads,
)
from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_layout import floats_are_float32, ordinary
from cerebras_tf.kernels.compiled_threads import split
from cerebras_tf.kernels.registry import Scratch, compiled

F = np.float32
Out = tuple[np.ndarray, ...]


class AllRows(NamedTuple):
    """What the softmax of all heads of a batch needs: as `Rows`, steps counting rows of `bias`.

    Attributes:
        scale: of scores.
        causal: whether query i sees keys up to i + T - S only.
        bias: rows of T numbers; none for no bias.
        batch: rows from item to item.
        head: rows from head to head.
        query: rows from query to query.
        lse: [B, A, S], for logarithms of sums.
    """

    scale: np.float32
    causal: bool
    bias: np.ndarray
    batch: int
    head: int
    query: int
    lse: np.ndarray


def _rows_of(rows, item, head):
    """The rows of a head, from its first query on."""
    row = rows.batch * item + rows.head * head
    scale, lse = rows.scale, rows.lse[item]
    return Rows(scale, rows.causal, rows.bias, row, rows.head, rows.query, lse, head, 0)


_rows_of_head = inlined(_rows_of)


@jit()
def _attend_heads(start, stop, thread, parts, address, width, operands, rooms, rows, drops):
    """attend_head of parts of the heads of a batch; see Kernels. Heads count over all items."""
    q, k, v, out = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        one = q[item, head], k[item, head], v[item, head], out[item, head]
        some, drop = _rows_of_head(rows, item, head), drop_of_head(drops, number)
        attend_head(address, width, one, rooms[thread], some, drop)


@jit()
def _attend_grad_heads(start, stop, thread, parts, address, width, operands, rooms, rows, drops):
    dout, q, k, v, dq, dk, dv = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        given = dout[item, head], q[item, head], k[item, head], v[item, head]
        one = (*given, dq[item, head], dk[item, head], dv[item, head])
        some, drop = _rows_of_head(rows, item, head), drop_of_head(drops, number)
        attend_grad_head(address, width, one, rooms[thread], some, drop)


def _head(number: int, operands: Operands, rows: AllRows, drops: Optional[AllDrops]) -> Any:
    """What `attend` or `attend_grad` takes of a head."""
    item, head = divmod(number, operands[0].shape[1])
    one = tuple(x[item, head] for x in operands)
    return one, _rows_of(rows, item, head), drop_of(drops, number)


_FORWARD = Kernels(_attend_heads, attend, _head)
_BACKWARD = Kernels(_attend_grad_heads, attend_grad, _head)


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
    rows, drops = _rows(bias, keys, scale, causal, out[1]), drops_of(dropped, shape)
    operands = tuple(_heads_first(x) for x in (q, k, v, out[0]))
    work, size = 4 * math.prod(shape), block_size(queries, keys)
    parts = np.array_split(np.arange(batch * heads), split(batch * heads, work))
    run_heads(_FORWARD, parts, work, size, operands, rows, drops)


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
    rows, drops = _rows(bias, keys, scale, causal, ordinary(lse)), drops_of(dropped, shape)
    operands = tuple(_heads_first(x) for x in (dout, q, k, v, *out))
    work, size = 8 * math.prod(shape), 2 * block_size(queries, keys)
    parts = np.array_split(np.arange(batch * heads), split(batch * heads, work))
    run_heads(_BACKWARD, parts, work, size, operands, rows, drops)
