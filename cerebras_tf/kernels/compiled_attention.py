"""Compiled attention, float32: blocks of queries against the keys that they may see.

Letters: B batch, S query length, T key length, A heads, D head width; Q queries of a block, K keys
that the block sees. Scores exist for one [Q, K] block a thread. Matrix products are BLAS's; softmax
and its derivative are compiled and work in place. Dropout's numbers are a function of their place,
so that both passes draw them again, a row at a time. It needs no running softmax over blocks of
keys: one block's scores fit the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.attention import Dropout, bias_and_dropout
from cerebras_tf.kernels.blas import gemm
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import floats_are_float32, ordinary
from cerebras_tf.kernels.compiled_math import exp, log
from cerebras_tf.kernels.compiled_random import Stream, stream_of, uniform_row
from cerebras_tf.kernels.compiled_rows import exp_in_place, row_max
from cerebras_tf.kernels.compiled_threads import for_chunks, threads
from cerebras_tf.kernels.registry import Scratch, compiled
from cerebras_tf.kernels.scratch import borrowed, rounded

F = np.float32
Out = tuple[np.ndarray, ...]
# Queries of a block: fewer skip more of what a causal mask hides, more make larger products. Best
# of 64, 128, 256 and 512 for lengths 512 to 2048 and widths 64 and 128.
QUERIES = 128
# Products S T D up to which all heads of an item are one block: a call costs more than its
# arithmetic there, and NumPy's BLAS takes them one after another without waking its threads.
SHORT = 1 << 18


class _Bias(NamedTuple):
    """A bias as rows of T numbers, and the steps between rows along batch, heads and queries."""

    rows: np.ndarray
    batch: int
    head: int
    query: int


def _bias_rows(bias: Optional[np.ndarray], keys: int) -> _Bias:
    """Rows of a bias that broadcasts to [B, A, S, T]; an empty matrix for none."""
    if bias is None:
        return _Bias(np.empty((0, 0), F), 0, 0, 0)
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    if bias.shape[3] != keys:
        bias = np.broadcast_to(bias, (*bias.shape[:3], keys))
    rows = ordinary(bias).reshape(-1, keys)
    batch, heads, queries = bias.shape[:3]
    return _Bias(
        rows,
        heads * queries if batch > 1 else 0,
        queries if heads > 1 else 0,
        1 if queries > 1 else 0,
    )


@jit(any_order=True)
def softmax_scores(
    start: Any,
    stop: Any,
    scores: Any,
    scale: Any,
    visible: Any,
    step: Any,
    bias: Any,
    bias_row: Any,
    bias_head: Any,
    bias_query: Any,
    lse: Any,
    first_head: Any,
    first_query: Any,
) -> None:
    """Rows of softmax(scale scores + bias), in place, and their lse [A, S].

    Row r belongs to head r // Q and query r % Q of the block; it sees visible + step query keys,
    or all keys where that is more. A row that sees none becomes NaN.
    """
    queries, keys = scores.shape[1], scores.shape[2]
    for r in range(start, stop):
        head = r // queries
        query = r % queries
        whole = scores[head, query]
        seen = max(0, min(keys, visible + step * query))
        row = whole[:seen]
        if bias.size:
            added = bias[bias_row + bias_head * head + bias_query * query]
            for j in range(seen):
                row[j] = row[j] * scale + added[j]
        else:
            for j in range(seen):
                row[j] *= scale
        hidden = F(0) if seen else F(np.nan)
        top = row_max(row)
        total = exp_in_place(row, top)
        inverse = F(1) / total
        for j in range(seen):
            row[j] *= inverse
        for j in range(seen, keys):
            whole[j] = hidden
        lse[first_head + head, first_query + query] = top + log(total)


@jit(any_order=True)
def softmax_scores_grad(
    start: Any,
    stop: Any,
    scores: Any,
    dscores: Any,
    scale: Any,
    visible: Any,
    step: Any,
    bias: Any,
    bias_row: Any,
    bias_head: Any,
    bias_query: Any,
    lse: Any,
    first_head: Any,
    first_query: Any,
) -> None:
    """Scores become probabilities, their cotangents dp become ds = scale p (dp - sum(p dp))."""
    queries, keys = scores.shape[1], scores.shape[2]
    for r in range(start, stop):
        head = r // queries
        query = r % queries
        p = scores[head, query]
        ds = dscores[head, query]
        seen = max(0, min(keys, visible + step * query))
        shift = lse[first_head + head, first_query + query]
        if bias.size:
            added = bias[bias_row + bias_head * head + bias_query * query]
            for j in range(seen):
                p[j] = exp(p[j] * scale + added[j] - shift)
        else:
            for j in range(seen):
                p[j] = exp(p[j] * scale - shift)
        along = F(0)
        for j in range(seen):
            along += p[j] * ds[j]
        for j in range(seen):
            ds[j] = p[j] * (ds[j] - along) * scale
        for j in range(seen, keys):
            p[j] = F(0)
            ds[j] = F(0)


class Drop(NamedTuple):
    """Dropout of a block: rate and scale, the numbers [B, A, S, T], and where its rows lie there.

    Row (head, query) of the block has row + queries head + query, of `keys` numbers.
    """

    rate: np.float32
    kept_scale: np.float32
    stream: Stream
    row: int
    queries: int
    keys: int


@jit()
def drop_row(row: Any, numbers: Any, rate: Any, kept_scale: Any) -> None:
    """A row of probabilities scaled where its number is at least the rate, else 0."""
    for j in range(row.size):
        row[j] = row[j] * kept_scale if numbers[j] >= rate else F(0)


@jit()
def dropped_softmax_scores(
    start: Any, stop: Any, scores: Any, drop: Any, scale: Any, visible: Any, step: Any, *rest: Any
) -> None:
    """softmax_scores, then dropout of what each row sees; lse stays the softmax's."""
    queries, keys = scores.shape[1], scores.shape[2]
    memory = np.empty(keys + 8, np.float32)
    for r in range(start, stop):
        head = r // queries
        query = r % queries
        softmax_scores(r, r + 1, scores, scale, visible, step, *rest)
        seen = max(0, min(keys, visible + step * query))
        first = drop.keys * (drop.row + drop.queries * head + query)
        numbers = uniform_row(drop.stream, first, seen, memory)
        drop_row(scores[head, query, :seen], numbers, drop.rate, drop.kept_scale)


@jit()
def dropped_softmax_scores_grad(
    start: Any,
    stop: Any,
    scores: Any,
    dscores: Any,
    drop: Any,
    scale: Any,
    visible: Any,
    step: Any,
    *rest: Any,
) -> None:
    """As softmax_scores_grad, from cotangents of dropped probabilities, which scores become."""
    queries, keys = scores.shape[1], scores.shape[2]
    memory = np.empty(keys + 8, np.float32)
    for r in range(start, stop):
        head = r // queries
        query = r % queries
        seen = max(0, min(keys, visible + step * query))
        first = drop.keys * (drop.row + drop.queries * head + query)
        numbers = uniform_row(drop.stream, first, seen, memory)
        drop_row(dscores[head, query, :seen], numbers, drop.rate, drop.kept_scale)
        softmax_scores_grad(r, r + 1, scores, dscores, scale, visible, step, *rest)
        drop_row(scores[head, query, :seen], numbers, drop.rate, drop.kept_scale)


class Block(NamedTuple):
    """One block: batch item, heads, their queries, and how many keys the last query sees."""

    item: int
    heads: slice
    queries: slice
    keys: int

    @property
    def scores_shape(self) -> tuple[int, int, int]:
        """[heads, Q, K]"""
        heads, queries = self.heads, self.queries
        return heads.stop - heads.start, queries.stop - queries.start, self.keys


def blocks(item: int, heads: slice, queries: int, keys: int, causal: bool) -> Iterator[Block]:
    """Blocks of some heads, the last queries, which see the most keys, first."""
    width = min(QUERIES, queries) if heads.stop - heads.start == 1 else queries
    for stop in range(queries, 0, -width):
        seen = min(keys, stop + keys - queries) if causal else keys
        yield Block(item, heads, slice(max(0, stop - width), stop), max(0, seen))


def _for_heads(
    shape: tuple[int, int, int, int], size: int, work: int, run: Callable[[int, slice], None]
) -> None:
    """run(item, heads) for all of them, several on a thread; shape is [B, A, S, T]."""
    batch, heads, queries, keys = shape
    if queries * keys * size <= SHORT:
        pairs = [(item, slice(0, heads)) for item in range(batch)]
    else:
        pairs = [(item, slice(head, head + 1)) for item in range(batch) for head in range(heads)]
    chunks = min(len(pairs), 4 * threads())

    def part(i: int) -> None:
        for pair in pairs[len(pairs) * i // chunks : len(pairs) * (i + 1) // chunks]:
            run(*pair)

    for_chunks(part, chunks, work)


def multiply(left: np.ndarray, right: np.ndarray, total: np.ndarray, add: bool = False) -> None:
    """total [heads, ...] (+)= left right of each head; several heads have one block, never add."""
    if len(left) == 1:
        gemm(left[0], right[0], total[0], add=add)
    else:
        np.matmul(left, right, out=total)


def turned(array: np.ndarray) -> np.ndarray:
    """The transposes of a matrix for each head."""
    return array.swapaxes(1, 2)


def _heads_first(array: np.ndarray) -> np.ndarray:
    """[B, S, A, D] as a view [B, A, S, D] whose last axis is contiguous."""
    if array.strides[3] != array.itemsize and array.shape[3] > 1:
        array = np.ascontiguousarray(array)
    return array.transpose(0, 2, 1, 3)


def _row_arguments(
    block: Block, queries: int, keys: int, scale: float, causal: bool, bias: _Bias
) -> tuple[Any, ...]:
    """What the row kernels take between the scores and lse."""
    visible = block.queries.start + 1 + keys - queries if causal else block.keys
    row = bias.batch * block.item + bias.head * block.heads.start + bias.query * block.queries.start
    return F(scale), visible, int(causal), bias.rows, row, bias.head, bias.query


def _drops(
    dropout: Optional[Dropout], block: Block, shape: tuple[int, int, int, int]
) -> tuple[Drop, ...]:
    """What the row kernels of dropout take besides; shape is [B, A, S, T]."""
    if dropout is None:
        return ()
    batch, heads, queries, keys = shape
    stream = stream_of(dropout.step, dropout.seeds, batch * heads * queries * keys)
    row = (block.item * heads + block.heads.start) * queries + block.queries.start
    return (Drop(F(dropout.rate), F(dropout.kept_scale), stream, row, queries, keys),)


def _lse_arguments(lse: np.ndarray, block: Block) -> tuple[Any, ...]:
    return lse[block.item], block.heads.start, block.queries.start


def _scratch(query: Any, key: Any, *others: Any, **attrs: Any) -> Scratch:
    """One block of scores a thread."""
    (_, queries, heads, size), keys = query.shape, key.shape[1]
    if queries * keys * size <= SHORT:
        return Scratch(0, rounded(4 * heads * queries * keys))
    return Scratch(0, rounded(4 * min(QUERIES, queries) * keys))


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
    (batch, queries, heads, size), keys = q.shape, k.shape[1]
    shape = batch, heads, queries, keys
    bias, dropped = bias_and_dropout(others, dropout)
    added = _bias_rows(bias, keys)
    query, key, value, result = (_heads_first(x) for x in (q, k, v, out[0]))
    kernel = softmax_scores if dropped is None else dropped_softmax_scores

    def run(item: int, some: slice) -> None:
        for block in blocks(item, some, queries, keys, causal):
            k_block, v_block = (x[item, some, : block.keys] for x in (key, value))
            with borrowed(block.scores_shape) as scores:
                multiply(query[item, some, block.queries], turned(k_block), scores)
                kernel(
                    0,
                    scores.shape[0] * scores.shape[1],
                    scores,
                    *_drops(dropped, block, shape),
                    *_row_arguments(block, queries, keys, scale, causal, added),
                    *_lse_arguments(out[1], block),
                )
                multiply(scores, v_block, result[item, some, block.queries])

    _for_heads(shape, size, 4 * batch * heads * queries * keys, run)


def accumulate(
    total: np.ndarray, left: np.ndarray, right: np.ndarray, keys: int, first: bool
) -> None:
    """total[:, :keys] (+)= left^T right of each head; the first block sees the most keys."""
    multiply(turned(left), right, total[:, :keys], add=not first)
    if first:
        total[:, keys:] = 0


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
    (batch, queries, heads, size), keys = q.shape, k.shape[1]
    shape = batch, heads, queries, keys
    bias, dropped = bias_and_dropout(others, dropout)
    added = _bias_rows(bias, keys)
    query, key, value, cotangent = (_heads_first(x) for x in (q, k, v, dout))
    dq, dk, dv = (_heads_first(x) for x in out)
    sums = ordinary(lse)
    kernel = softmax_scores_grad if dropped is None else dropped_softmax_scores_grad

    def run(item: int, some: slice) -> None:
        for block in blocks(item, some, queries, keys, causal):
            q_block, do_block = (x[item, some, block.queries] for x in (query, cotangent))
            k_block, v_block = (x[item, some, : block.keys] for x in (key, value))
            room = block.scores_shape
            with borrowed(room) as scores, borrowed(room) as dscores:
                multiply(q_block, turned(k_block), scores)
                multiply(do_block, turned(v_block), dscores)
                kernel(
                    0,
                    scores.shape[0] * scores.shape[1],
                    scores,
                    dscores,
                    *_drops(dropped, block, shape),
                    *_row_arguments(block, queries, keys, scale, causal, added),
                    *_lse_arguments(sums, block),
                )
                first = block.queries.stop == queries
                accumulate(dv[item, some], scores, do_block, block.keys, first)
                accumulate(dk[item, some], dscores, q_block, block.keys, first)
                multiply(dscores, k_block, dq[item, some, block.queries])

    _for_heads(shape, size, 8 * batch * heads * queries * keys, run)
