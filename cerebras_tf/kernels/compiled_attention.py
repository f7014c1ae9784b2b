"""Compiled attention, float32, of padded batches and of packed tokens: heads spread over threads.

Letters: B sequences, A heads, D head width; padded: S query length, T key length; packed: S and K
padded lengths, T real tokens of all queries and U of all keys. compiled_flash_attention.py has the
algorithm within a head.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.attention import Dropout, bias_and_dropout
from cerebras_tf.kernels.compiled_flash_attention import (
    Operands,
    SoftmaxRows,
    attention_head,
    attention_head_grad,
    batch_dropout,
    block_bytes,
    block_size,
    head_dropout,
    inlined_with_sgemm,
    jit_with_sgemm,
    run_heads,
)
from cerebras_tf.kernels.compiled_layout import as_contiguous, floats_are_float32
from cerebras_tf.kernels.compiled_threads import chunk_count
from cerebras_tf.kernels.packing import Lengths
from cerebras_tf.kernels.registry import Scratch, compiled

F = np.float32
Out = tuple[np.ndarray, ...]


class BatchRows(NamedTuple):
    """As `SoftmaxRows` for all heads of a batch; lse is [B, A, S].

    Attributes:
        batch, head, query: rows of `bias` between batch items, heads and queries.
    """

    scale: np.float32
    causal: bool
    bias: np.ndarray
    batch: int
    head: int
    query: int
    lse: np.ndarray


@inlined_with_sgemm
def _rows_of_head(rows, item, head):
    """The rows of a head, from its first query on."""
    row = rows.batch * item + rows.head * head
    scale, lse = rows.scale, rows.lse[item]
    return SoftmaxRows(scale, rows.causal, rows.bias, row, rows.query, lse, head, 0)


@jit_with_sgemm
def _attention_heads(
    start, stop, thread, parts, address, width, operands, workspaces, rows, dropouts
):
    """attention_head for chunks of heads; see run_heads. Heads count over the batch."""
    q, k, v, out = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        given = q[item, head], k[item, head], v[item, head], out[item, head]
        own, dropout = _rows_of_head(rows, item, head), head_dropout(dropouts, number)
        attention_head(address, width, given, workspaces[thread], own, dropout)


@jit_with_sgemm
def _attention_grad_heads(
    start, stop, thread, parts, address, width, operands, workspaces, rows, dropouts
):
    dout, q, k, v, dq, dk, dv = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        given = dout[item, head], q[item, head], k[item, head], v[item, head]
        found = dq[item, head], dk[item, head], dv[item, head]
        own, dropout = _rows_of_head(rows, item, head), head_dropout(dropouts, number)
        attention_head_grad(address, width, (*given, *found), workspaces[thread], own, dropout)


def _rows(
    bias: Optional[np.ndarray], keys: int, scale: float, causal: bool, lse: np.ndarray
) -> BatchRows:
    """BatchRows with a bias that broadcasts to [B, A, S, T], or none."""
    if bias is None:
        return BatchRows(F(scale), causal, np.empty((0, 0), F), 0, 0, 0, lse)
    added: np.ndarray = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    batch, heads, queries, columns = added.shape
    if columns != keys:
        added = np.broadcast_to(added, (batch, heads, queries, keys))
    steps = (
        heads * queries if batch > 1 else 0,
        queries if heads > 1 else 0,
        1 if queries > 1 else 0,
    )
    return BatchRows(F(scale), causal, as_contiguous(added).reshape(-1, keys), *steps, lse)


def _transpose_heads(array: np.ndarray) -> np.ndarray:
    """[B, S, A, D] as a view [B, A, S, D] with a contiguous last axis."""
    if array.strides[3] != array.itemsize and array.shape[3] > 1:
        array = np.ascontiguousarray(array)
    return array.transpose(0, 2, 1, 3)


def _scratch(query: Any, key: Any, *extra: Any, **attrs: Any) -> Scratch:
    """One block of scores per thread."""
    return Scratch(0, block_bytes(query.shape[1], key.shape[1]))


def _scratch_of_gradient(dout: Any, *operands: Any, **attrs: Any) -> Scratch:
    return Scratch(0, 2 * _scratch(*operands, **attrs).per_thread)


@compiled("attention", supports=floats_are_float32, scratch=_scratch)
def attention(q, k, v, *extra, out, scale, causal, **dropout):
    """attention into out [B, S, A, D] and lse [B, A, S]."""
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    shape = batch, heads, queries, keys
    bias, dropped = bias_and_dropout(extra, dropout)
    rows, dropouts = _rows(bias, keys, scale, causal, out[1]), batch_dropout(dropped, shape)
    operands = tuple(_transpose_heads(x) for x in (q, k, v, out[0]))
    work, size = 4 * math.prod(shape), block_size(queries, keys)
    parts = np.array_split(np.arange(batch * heads), chunk_count(batch * heads, work))
    run_heads(_attention_heads, parts, work, size, operands, rows, dropouts)


@compiled("attention_grad", supports=floats_are_float32, scratch=_scratch_of_gradient)
def attention_grad(dout, q, k, v, y, lse, *extra, out, scale, causal, **dropout):
    """attention_grad into dq, dk, dv, each [B, S or T, A, D]; y, attention's out, is not read."""
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    shape = batch, heads, queries, keys
    bias, dropped = bias_and_dropout(extra, dropout)
    rows = _rows(bias, keys, scale, causal, as_contiguous(lse))
    dropouts = batch_dropout(dropped, shape)
    operands = tuple(_transpose_heads(x) for x in (dout, q, k, v, *out))
    work, size = 8 * math.prod(shape), 2 * block_size(queries, keys)
    parts = np.array_split(np.arange(batch * heads), chunk_count(batch * heads, work))
    run_heads(_attention_grad_heads, parts, work, size, operands, rows, dropouts)


_NO_BIAS = np.empty((0, 0), F)


class _PackedRows(NamedTuple):
    """As `SoftmaxRows` for all heads.

    Attributes:
        causal: whether query i of a sequence sees its keys up to i only.
        no_bias: an empty matrix.
        queries: int64 [B + 1], starts of the sequences' queries, and T.
        keys: int64 [B + 1], starts of their keys, and U.
        lse: [A, T], log(sum(e^scores)).
    """

    scale: np.float32
    causal: bool
    no_bias: np.ndarray
    queries: np.ndarray
    keys: np.ndarray
    lse: np.ndarray


@inlined_with_sgemm
def _packed_rows_of_head(rows, item, head):
    """The rows of a head, from the first query of its sequence on."""
    first = rows.queries[item]
    return SoftmaxRows(rows.scale, rows.causal, rows.no_bias, 0, 0, rows.lse, head, first)


@jit_with_sgemm
def _packed_attention_heads(
    start, stop, thread, parts, address, width, operands, workspaces, rows, dropouts
):
    """attention_head for chunks of heads, which count over sequences; see run_heads."""
    q, k, v, out = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        begin, end = rows.queries[item], rows.queries[item + 1]
        first, last = rows.keys[item], rows.keys[item + 1]
        given = q[begin:end, head], k[first:last, head], v[first:last, head], out[begin:end, head]
        own, dropout = _packed_rows_of_head(rows, item, head), head_dropout(dropouts, number)
        attention_head(address, width, given, workspaces[thread], own, dropout)


@jit_with_sgemm
def _packed_attention_grad_heads(
    start, stop, thread, parts, address, width, operands, workspaces, rows, dropouts
):
    dout, q, k, v, dq, dk, dv = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        begin, end = rows.queries[item], rows.queries[item + 1]
        first, last = rows.keys[item], rows.keys[item + 1]
        given = dout[begin:end, head], q[begin:end, head], k[first:last, head], v[first:last, head]
        found = dq[begin:end, head], dk[first:last, head], dv[first:last, head]
        own, dropout = _packed_rows_of_head(rows, item, head), head_dropout(dropouts, number)
        attention_head_grad(address, width, (*given, *found), workspaces[thread], own, dropout)


def _run_packed(
    kernel: Any,
    blocks: int,
    operands: Operands,
    rows: _PackedRows,
    lengths: Lengths,
    dropout: Optional[Dropout],
) -> None:
    """Runs all heads in memory order, in chunks with equally many scores.

    Args:
        blocks: blocks of scores that a thread's workspace holds.
    """
    heads, count = operands[0].shape[1], len(rows.queries) - 1
    dropouts = batch_dropout(dropout, (count, heads, *lengths))
    queries, keys = np.diff(rows.queries), np.diff(rows.keys)
    scores = np.cumsum(np.repeat(queries * keys, heads))
    work = 4 * blocks * heads * int(queries @ keys)
    chunks = chunk_count(count * heads, work)
    ends = np.searchsorted(scores, scores[-1:] * np.arange(1, chunks) // chunks)
    parts = np.split(np.arange(count * heads), ends)
    size = blocks * block_size(int(queries.max(initial=0)), int(keys.max(initial=0)))
    run_heads(kernel, parts, work, size, operands, rows, dropouts)


def _packed_scratch(query: Any, key: Any, *extra: Any, lengths: Lengths, **attrs: Any) -> Scratch:
    """One block of scores per thread."""
    return Scratch(0, block_bytes(*lengths))


def _packed_scratch_of_gradient(dout: Any, *operands: Any, **attrs: Any) -> Scratch:
    return Scratch(0, 2 * _packed_scratch(*operands, **attrs).per_thread)


def _supports_packed(*operands: Any, **attrs: Any) -> bool:
    heads_wide = [x for x in operands if len(x.shape) == 3]
    return floats_are_float32(*heads_wide)


def _packed_rows(
    scale: float, causal: bool, offsets_q: np.ndarray, offsets_k: np.ndarray, lse: np.ndarray
) -> _PackedRows:
    queries, keys = (np.array(x, np.int64) for x in (offsets_q, offsets_k))
    return _PackedRows(F(scale), bool(causal), _NO_BIAS, queries, keys, lse)


@compiled("packed_attention", supports=_supports_packed, scratch=_packed_scratch)
def packed_attention(q, k, v, offsets_q, offsets_k, *extra, out, scale, causal, lengths, **dropout):
    """packed_attention into out [T, A, D] and lse [A, T]."""
    _, dropped = bias_and_dropout(extra, dropout)
    result, lse = out
    rows = _packed_rows(scale, causal, offsets_q, offsets_k, lse)
    operands = (*(as_contiguous(x) for x in (q, k, v)), result)
    _run_packed(_packed_attention_heads, 1, operands, rows, lengths, dropped)


@compiled("packed_attention_grad", supports=_supports_packed, scratch=_packed_scratch_of_gradient)
def packed_attention_grad(
    dout, q, k, v, y, lse, offsets_q, offsets_k, *extra, out, scale, causal, lengths, **dropout
):
    """packed_attention_grad into dq, dk, dv, each [T or U, A, D]; y, the result, is not read."""
    _, dropped = bias_and_dropout(extra, dropout)
    rows = _packed_rows(scale, causal, offsets_q, offsets_k, as_contiguous(lse))
    operands = (*(as_contiguous(x) for x in (dout, q, k, v)), *out)
    _run_packed(_packed_attention_grad_heads, 2, operands, rows, lengths, dropped)
