"""Compiled attention, float32, of padded batches and of packed tokens: heads spread over threads.

Letters: B sequences, A heads of queries, G heads of keys and values, each of which A / G heads of
queries read, D head width; padded: S query length, T key length; packed: S and K
padded lengths, T real tokens of all queries and U of all keys. compiled_flash_attention.py has the
algorithm within a head, compiled_bfloat16_attention.py that of products in bfloat16.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels import compiled_bfloat16_attention, compiled_flash_attention
from cerebras_tf.kernels import instruction_set as isa
from cerebras_tf.kernels.attention import Dropout, bias_and_dropout
from cerebras_tf.kernels.compiled_bfloat16 import TILE_CONFIG, instructions, round_into
from cerebras_tf.kernels.compiled_bfloat16_attention import (
    attention_head_bfloat16,
    attention_head_grad_bfloat16,
    workspace_bytes,
)
from cerebras_tf.kernels.compiled_flash_attention import (
    Operands,
    Products,
    SoftmaxRows,
    attention_head,
    attention_head_grad,
    batch_dropout,
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
from cerebras_tf.kernels.scratch import borrow, round_up

F = np.float32
Out = tuple[np.ndarray, ...]
_NO_BIAS = np.empty((0, 0), F)


class _Method(NamedTuple):
    """How attention is computed.

    Attributes:
        rounded: whether operands are rounded to bfloat16 and multiplied in float32.
    """

    products: Products
    rounded: bool

    @classmethod
    def of(cls, compute: Optional[str]) -> _Method:
        """By the attribute `compute`."""
        kind = isa.NONE if compute is None else instructions().kind
        if kind == isa.NONE:
            flash = compiled_flash_attention
            return cls(Products(flash.SGEMM, None, None, flash.QUERY_BLOCK), compute is not None)
        config = TILE_CONFIG.ctypes.data if kind == isa.AMX else None
        return cls(Products(None, 1, config, compiled_bfloat16_attention.QUERY_BLOCK), False)

    def size(self, queries: int, keys: int, depth: int, gradient: bool) -> int:
        """Floats of a thread's workspace."""
        if self.products.sgemm is not None:
            return (2 if gradient else 1) * block_size(queries, keys)
        tiled = self.products.config is not None
        return workspace_bytes(tiled, queries, keys, depth, gradient) // 4

    def scratch(self, queries: int, keys: int, gradient: bool, operands: Sequence[Any]) -> Scratch:
        """`operands`: those of products, of any rank."""
        shapes = [x.shape for x in operands]
        copies = sum(round_up(4 * math.prod(shape)) for shape in shapes) if self.rounded else 0
        return Scratch(copies, round_up(4 * self.size(queries, keys, shapes[0][-1], gradient)))

    @contextmanager
    def rounding(self, operands: Operands) -> Iterator[Operands]:
        """Context manager: the operands of products, as they are, or copies that are rounded."""
        with ExitStack() as stack:
            if self.rounded:
                copies = [stack.enter_context(borrow(x.shape)) for x in operands]
                for x, copy in zip(operands, copies):
                    round_into(np.ascontiguousarray(x), copy, 2)
                operands = tuple(copies)
            yield operands


class BatchRows(NamedTuple):
    """As `SoftmaxRows` for all heads of a batch.

    Packed tokens are a batch of one item; the places of their sequences are ranges of it.

    Attributes:
        batch, head, query: rows of `bias` between batch items, heads and queries.
        places: int64 [sequences, 5], of each the batch item, its first query and the end of its
            queries, its first key and the end of its keys.
        lse: [B, A, S], log(sum(e^scores)).
    """

    scale: np.float32
    causal: bool
    bias: np.ndarray
    batch: int
    head: int
    query: int
    places: np.ndarray
    lse: np.ndarray
    rounded: bool


@inlined_with_sgemm
def _rows_of_head(rows, sequence, head):
    """The rows of a head, from the first query of its sequence on."""
    item, first = rows.places[sequence, 0], rows.places[sequence, 1]
    row = rows.batch * item + rows.head * head
    scale, lse = rows.scale, rows.lse[item]
    return SoftmaxRows(
        scale, rows.causal, rows.bias, row, rows.query, lse, head, first, rows.rounded
    )


@inlined_with_sgemm
def _attend(sgemm, instructions, config, width, operands, memory, rows, dropout):
    """attention_head, with the products that run_heads was given."""
    if instructions is None:
        if sgemm is not None:
            attention_head(sgemm, width, operands, memory, rows, dropout)
    elif sgemm is None:
        attention_head_bfloat16(config, width, operands, memory, rows, dropout)


@inlined_with_sgemm
def _attend_grad(sgemm, instructions, config, width, operands, memory, rows, dropout, adds):
    """attention_head_grad, with the products that run_heads was given."""
    if instructions is None:
        if sgemm is not None:
            attention_head_grad(sgemm, width, operands, memory, rows, dropout, adds)
    elif sgemm is None:
        attention_head_grad_bfloat16(config, width, operands, memory, rows, dropout, adds)


@jit_with_sgemm
def _attention_heads(
    start,
    stop,
    thread,
    parts,
    sgemm,
    instructions,
    config,
    width,
    operands,
    workspaces,
    rows,
    dropouts,
):
    """attention_head for chunks of heads, which count over sequences; see run_heads."""
    q, k, v, out = operands
    numbers, bounds = parts
    for number in numbers[bounds[start] : bounds[stop]]:
        sequence, head = divmod(number, q.shape[1])
        item, begin, end, first, last = rows.places[sequence]
        shared = head // (q.shape[1] // k.shape[1])
        given = (
            q[item, head, begin:end, :, 0],
            k[item, shared, first:last, :, 0],
            v[item, shared, first:last, :, 0],
            out[item, head, begin:end, :, 0],
        )
        own, dropout = _rows_of_head(rows, sequence, head), head_dropout(dropouts, number)
        memory = workspaces[thread]
        _attend(sgemm, instructions, config, width, given, memory, own, dropout)


@jit_with_sgemm
def _attention_grad_heads(
    start,
    stop,
    thread,
    parts,
    sgemm,
    instructions,
    config,
    width,
    operands,
    workspaces,
    rows,
    dropouts,
):
    """attention_head_grad for chunks of heads of keys, which count over sequences."""
    dout, q, k, v, dq, dk, dv = operands
    numbers, bounds = parts
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    for number in numbers[bounds[start] : bounds[stop]]:
        sequence, shared = divmod(number, k.shape[1])
        item, begin, end, first, last = rows.places[sequence]
        for head in range(shared * group, (shared + 1) * group):
            given = (
                dout[item, head, begin:end, :, 0],
                q[item, head, begin:end, :, 0],
                k[item, shared, first:last, :, 0],
                v[item, shared, first:last, :, 0],
            )
            all_of = (
                *given,
                dq[item, head, begin:end, :, 0],
                dk[item, shared, first:last, :, 0],
                dv[item, shared, first:last, :, 0],
            )
            own = _rows_of_head(rows, sequence, head)
            dropout = head_dropout(dropouts, sequence * heads + head)
            adds, memory = head > shared * group, workspaces[thread]
            _attend_grad(sgemm, instructions, config, width, all_of, memory, own, dropout, adds)


@functools.lru_cache(maxsize=64)
def _padded_places(batch: int, queries: int, keys: int) -> np.ndarray:
    places = np.zeros((batch, 5), np.int64)
    places[:, 0], places[:, 2], places[:, 4] = np.arange(batch), queries, keys
    return places


def _rows(
    bias: Optional[np.ndarray],
    operands: Operands,
    scale: float,
    causal: bool,
    lse: np.ndarray,
    rounded: bool,
) -> BatchRows:
    """BatchRows of padded operands q and k, with a bias that broadcasts to [B, A, S, T]."""
    (batch, queries), keys = operands[0].shape[:2], operands[1].shape[1]
    places = _padded_places(batch, queries, keys)
    if bias is None:
        return BatchRows(F(scale), causal, _NO_BIAS, 0, 0, 0, places, lse, rounded)
    added: np.ndarray = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    batch, heads, queries, columns = added.shape
    if columns != keys:
        added = np.broadcast_to(added, (batch, heads, queries, keys))
    steps = (
        heads * queries if batch > 1 else 0,
        queries if heads > 1 else 0,
        1 if queries > 1 else 0,
    )
    flat = as_contiguous(added).reshape(-1, keys)
    return BatchRows(F(scale), causal, flat, *steps, places, lse, rounded)


def _transpose_heads(array: np.ndarray) -> np.ndarray:
    """[B, S, A, D] as a view [B, A, S, D, 1] with contiguous vectors of D, that itself is not.

    Numba compiles for each layout. Arrays of one head or one query are contiguous: their last axis
    is 2 long, with a stride of 0.
    """
    if array.strides[3] != array.itemsize and array.shape[3] > 1:
        array = np.ascontiguousarray(array)
    heads = array.transpose(0, 2, 1, 3)[..., None]
    if not heads.flags.forc:
        return heads
    return np.lib.stride_tricks.as_strided(heads, (*heads.shape[:4], 2), (*heads.strides[:4], 0))


def _scratch(query: Any, key: Any, value: Any, *extra: Any, **attrs: Any) -> Scratch:
    lengths = query.shape[1], key.shape[1]
    return _Method.of(attrs.get("compute")).scratch(*lengths, False, (query, key, value))


def _scratch_of_gradient(dout: Any, query: Any, key: Any, *extra: Any, **attrs: Any) -> Scratch:
    lengths = query.shape[1], key.shape[1]
    return _Method.of(attrs.get("compute")).scratch(*lengths, True, (dout, query, key, extra[0]))


def _run(
    kernel: Any,
    method: _Method,
    operands: Operands,
    results: Operands,
    rows: BatchRows,
    lengths: tuple[int, int],
    dropout: Optional[Dropout],
) -> None:
    """Runs all heads, in chunks with equally many scores.

    Args:
        kernel: that of derivatives counts heads of keys.
        operands: q, k and v, after dout for the derivatives, each [B, S or T, A or G, D].
        results: those of the same shapes.
        lengths: padded lengths of queries and keys.
    """
    gradient = len(operands) == 4
    (batch, _, heads, depth), sequences = operands[-3].shape, len(rows.places)
    counted = operands[-2].shape[2] if gradient else heads
    work = (8 if gradient else 4) * heads
    numbers = np.arange(sequences * counted)
    if sequences == batch:  # of equal lengths
        work *= sequences * math.prod(lengths)
        parts = np.array_split(numbers, chunk_count(len(numbers), work))
    else:
        _, begins, ends, firsts, lasts = rows.places.T
        scores = np.cumsum(np.repeat((ends - begins) * (lasts - firsts), counted))
        work *= int(scores[-1:].sum()) // counted
        chunks = chunk_count(len(numbers), work)
        splits = np.searchsorted(scores, scores[-1:] * np.arange(1, chunks) // chunks, "right")
        parts = np.split(numbers, splits)
    size = method.size(*lengths, depth, gradient)
    dropouts = batch_dropout(dropout, (sequences, heads, *lengths))
    with method.rounding(operands) as rounded:
        given = tuple(_transpose_heads(x) for x in (*rounded, *results))
        run_heads(kernel, parts, work, size, given, rows, dropouts, method.products)


@compiled("attention", supports=floats_are_float32, scratch=_scratch)
def attention(q, k, v, *extra, out, scale, causal, compute=None, **dropout):
    """attention into out [B, S, A, D] and lse [B, A, S]."""
    bias, dropped = bias_and_dropout(extra, dropout)
    method = _Method.of(compute)
    rows = _rows(bias, (q, k), scale, causal, out[1], method.rounded)
    lengths = q.shape[1], k.shape[1]
    _run(_attention_heads, method, (q, k, v), out[:1], rows, lengths, dropped)


@compiled("attention_grad", supports=floats_are_float32, scratch=_scratch_of_gradient)
def attention_grad(dout, q, k, v, y, lse, *extra, out, scale, causal, compute=None, **dropout):
    """attention_grad into dq, dk, dv; y, attention's out, is not read."""
    bias, dropped = bias_and_dropout(extra, dropout)
    method = _Method.of(compute)
    rows = _rows(bias, (q, k), scale, causal, as_contiguous(lse), method.rounded)
    lengths = q.shape[1], k.shape[1]
    _run(_attention_grad_heads, method, (dout, q, k, v), out, rows, lengths, dropped)


def _packed_scratch(query: Any, *operands: Any, lengths: Lengths, **attrs: Any) -> Scratch:
    method = _Method.of(attrs.get("compute"))
    return method.scratch(*lengths, False, (query, *operands[:2]))


def _packed_scratch_of_gradient(
    dout: Any, *operands: Any, lengths: Lengths, **attrs: Any
) -> Scratch:
    method = _Method.of(attrs.get("compute"))
    return method.scratch(*lengths, True, (dout, *operands[:3]))


def _supports_packed(*operands: Any, **attrs: Any) -> bool:
    heads_wide = [x for x in operands if len(x.shape) == 3]
    return floats_are_float32(*heads_wide)


def _packed_rows(
    scale: float, causal: bool, offsets: Sequence[np.ndarray], lse: np.ndarray, rounded: bool
) -> BatchRows:
    """BatchRows of packed tokens.

    Args:
        offsets: starts of the sequences' queries, and T; starts of their keys, and U.
        lse: [A, T].
    """
    queries, keys = (np.array(x, np.int64) for x in offsets)
    ranges = np.zeros_like(queries[1:]), queries[:-1], queries[1:], keys[:-1], keys[1:]
    places = np.stack(ranges, axis=1)
    return BatchRows(F(scale), bool(causal), _NO_BIAS, 0, 0, 0, places, lse[None], rounded)


@compiled("packed_attention", supports=_supports_packed, scratch=_packed_scratch)
def packed_attention(
    q, k, v, offsets_q, offsets_k, *extra, out, scale, causal, lengths, compute=None, **dropout
):
    """packed_attention into out [T, A, D] and lse [A, T]."""
    _, dropped = bias_and_dropout(extra, dropout)
    method = _Method.of(compute)
    rows = _packed_rows(scale, causal, (offsets_q, offsets_k), out[1], method.rounded)
    operands = q[None], k[None], v[None]
    _run(_attention_heads, method, operands, (out[0][None],), rows, lengths, dropped)


@compiled("packed_attention_grad", supports=_supports_packed, scratch=_packed_scratch_of_gradient)
def packed_attention_grad(
    dout,
    q,
    k,
    v,
    y,
    lse,
    offsets_q,
    offsets_k,
    *extra,
    out,
    scale,
    causal,
    lengths,
    compute=None,
    **dropout,
):
    """packed_attention_grad into dq, dk, dv; y, the result, is not read."""
    _, dropped = bias_and_dropout(extra, dropout)
    method, ends = _Method.of(compute), (offsets_q, offsets_k)
    rows = _packed_rows(scale, causal, ends, as_contiguous(lse), method.rounded)
    operands = dout[None], q[None], k[None], v[None]
    results = tuple(x[None] for x in out)
    _run(_attention_grad_heads, method, operands, results, rows, lengths, dropped)
