"""Compiled attention of packed tokens, float32, and draws of some rows.

Letters: B sequences, S and K their padded lengths (of queries, of keys), T real tokens of all
queries and U of all keys, A heads, D head width. What happens within a head stands in
compiled_heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.attention import Dropout, bias_and_dropout
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
from cerebras_tf.kernels.compiled_random import WHOLE, stream_of, uniform_row
from cerebras_tf.kernels.compiled_threads import for_rows, split
from cerebras_tf.kernels.packing import Lengths
from cerebras_tf.kernels.random import Seeds, Step
from cerebras_tf.kernels.registry import Scratch, compiled

F = np.float32
Out = tuple[np.ndarray, ...]
_NO_BIAS = np.empty((0, 0), F)


class _Rows(NamedTuple):
    """What the softmax of all heads needs.

    Attributes:
        scale: of scores.
        causal: whether query i sees keys up to i only.
        no_bias: an empty matrix.
        queries: int64 [B + 1], where the sequences' queries begin, and T.
        keys: int64 [B + 1], where their keys begin, and U.
        lse: [A, T], for logarithms of sums.
    """

    scale: np.float32
    causal: bool
    no_bias: np.ndarray
    queries: np.ndarray
    keys: np.ndarray
    lse: np.ndarray


def _rows_of(rows, item, head):
    """The rows of a head, from the first query of its sequence on."""
    first = rows.queries[item]
    return Rows(rows.scale, rows.causal, rows.no_bias, 0, 0, 0, rows.lse, head, first)


_rows_of_head = inlined(_rows_of)


@jit()
def _attend_heads(start, stop, thread, parts, address, width, operands, rooms, rows, drops):
    """attend_head of parts of the heads; see Kernels. Heads count over all sequences."""
    q, k, v, out = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        begin, end = rows.queries[item], rows.queries[item + 1]
        first, last = rows.keys[item], rows.keys[item + 1]
        given = q[begin:end, head], k[first:last, head], v[first:last, head]
        some, drop = _rows_of_head(rows, item, head), drop_of_head(drops, number)
        attend_head(address, width, (*given, out[begin:end, head]), rooms[thread], some, drop)


@jit()
def _attend_grad_heads(start, stop, thread, parts, address, width, operands, rooms, rows, drops):
    dout, q, k, v, dq, dk, dv = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        item, head = divmod(number, q.shape[1])
        begin, end = rows.queries[item], rows.queries[item + 1]
        first, last = rows.keys[item], rows.keys[item + 1]
        given = dout[begin:end, head], q[begin:end, head], k[first:last, head], v[first:last, head]
        found = dq[begin:end, head], dk[first:last, head], dv[first:last, head]
        some, drop = _rows_of_head(rows, item, head), drop_of_head(drops, number)
        attend_grad_head(address, width, (*given, *found), rooms[thread], some, drop)


def _head(operands: Operands, places: tuple[slice, ...], head: int) -> Operands:
    return tuple(x[place, head] for x, place in zip(operands, places))


def _places(rows: _Rows, item: int) -> tuple[slice, slice]:
    """Where the queries of a sequence lie, and its keys."""
    mine, theirs = (slice(x[item], x[item + 1]) for x in (rows.queries, rows.keys))
    return mine, theirs


def _forward_head(number: int, operands: Operands, rows: _Rows, drops: Optional[AllDrops]) -> Any:
    """What `attend` takes of a head."""
    item, head = divmod(number, operands[0].shape[1])
    mine, theirs = _places(rows, item)
    one = _head(operands, (mine, theirs, theirs, mine), head)
    return one, _rows_of(rows, item, head), drop_of(drops, number)


def _backward_head(number: int, operands: Operands, rows: _Rows, drops: Optional[AllDrops]) -> Any:
    """What `attend_grad` takes of a head."""
    item, head = divmod(number, operands[0].shape[1])
    mine, theirs = _places(rows, item)
    one = _head(operands, (mine, mine, theirs, theirs, mine, theirs, theirs), head)
    return one, _rows_of(rows, item, head), drop_of(drops, number)


_FORWARD = Kernels(_attend_heads, attend, _forward_head)
_BACKWARD = Kernels(_attend_grad_heads, attend_grad, _backward_head)


def _run(
    kernels: Kernels,
    blocks: int,
    operands: Operands,
    rows: _Rows,
    lengths: Lengths,
    dropout: Optional[Dropout],
) -> None:
    """Runs all heads in the order in which they lie, in parts of equally many scores.

    Args:
        kernels: attention or its derivatives.
        blocks: blocks of scores that a thread has room for.
        operands: what the kernels take.
        rows: of all heads.
        lengths: S and K.
        dropout: of all heads; None for none.
    """
    heads, count = operands[0].shape[1], len(rows.queries) - 1
    drops = drops_of(dropout, (count, heads, *lengths))
    queries, keys = np.diff(rows.queries), np.diff(rows.keys)
    scores = np.cumsum(np.repeat(queries * keys, heads))
    work = 4 * blocks * heads * int(queries @ keys)
    chunks = split(count * heads, work)
    ends = np.searchsorted(scores, scores[-1:] * np.arange(1, chunks) // chunks)
    parts = np.split(np.arange(count * heads), ends)
    size = blocks * block_size(int(queries.max(initial=0)), int(keys.max(initial=0)))
    run_heads(kernels, parts, work, size, operands, rows, drops)


def _scratch(query: Any, key: Any, *others: Any, lengths: Lengths, **attrs: Any) -> Scratch:
    """One block of scores a thread."""
    return Scratch(0, block_bytes(*lengths))


def _scratch_of_gradient(dout: Any, *operands: Any, **attrs: Any) -> Scratch:
    return Scratch(0, 2 * _scratch(*operands, **attrs).a_thread)


def _supports(*operands: Any, **attrs: Any) -> bool:
    heads_wide = [x for x in operands if len(x.shape) == 3]
    return floats_are_float32(*heads_wide)


def _all_rows(
    scale: float, causal: bool, offsets_q: np.ndarray, offsets_k: np.ndarray, lse: np.ndarray
) -> _Rows:
    queries, keys = (np.array(x, np.int64) for x in (offsets_q, offsets_k))
    return _Rows(F(scale), bool(causal), _NO_BIAS, queries, keys, lse)


@compiled("packed_attention", supports=_supports, scratch=_scratch)
def packed_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    offsets_q: np.ndarray,
    offsets_k: np.ndarray,
    *others: np.ndarray,
    out: Out,
    scale: float,
    causal: bool,
    lengths: Lengths,
    **dropout: Any,
) -> None:
    """packed_attention into out [T, A, D] and lse [A, T]."""
    _, dropped = bias_and_dropout(others, dropout)
    result, lse = out
    rows = _all_rows(scale, causal, offsets_q, offsets_k, lse)
    operands = (*(ordinary(x) for x in (q, k, v)), result)
    _run(_FORWARD, 1, operands, rows, lengths, dropped)


@compiled("packed_attention_grad", supports=_supports, scratch=_scratch_of_gradient)
def packed_attention_grad(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    y: np.ndarray,
    lse: np.ndarray,
    offsets_q: np.ndarray,
    offsets_k: np.ndarray,
    *others: np.ndarray,
    out: Out,
    scale: float,
    causal: bool,
    lengths: Lengths,
    **dropout: Any,
) -> None:
    """packed_attention_grad into dq, dk, dv, each [T or U, A, D]; y, the result, is not read."""
    _, dropped = bias_and_dropout(others, dropout)
    rows = _all_rows(scale, causal, offsets_q, offsets_k, ordinary(lse))
    operands = (*(ordinary(x) for x in (dout, q, k, v)), *out)
    _run(_BACKWARD, 2, operands, rows, lengths, dropped)


@jit()
def _draw_rows(start, stop, rows, stream, out):
    width = out.shape[1]
    memory = np.empty(width + WHOLE + 3, np.float32)
    for r in range(start, stop):
        numbers = uniform_row(stream, rows[r] * width, width, memory)
        row = out[r]
        for j in range(width):
            row[j] = numbers[j]


def _is_float32(*operands: Any, dtype: str, **attrs: Any) -> bool:
    return dtype == "float32"


@compiled("random_uniform_rows", supports=_is_float32)
def random_uniform_rows(
    rows: np.ndarray,
    step: Step,
    seeds: Seeds,
    *,
    out: Out,
    shape: tuple[int, ...],
    axes: int,
    dtype: str,
) -> None:
    """random_uniform_rows into out, bit for bit the plain kernel's numbers."""
    size = int(np.prod(shape, dtype=np.int64))
    flat = out[0].reshape(len(rows), -1)
    stream = stream_of(step, seeds, size)
    for_rows(_draw_rows, len(rows), 8 * flat.size, np.array(rows, np.int64), stream, flat)
