"""Attention within a head, float32: blocks of queries against the keys that they may see.

Letters: S query length, T key length, D head width; Q queries of a block, K keys that the block
sees. Scores exist for one [Q, K] block a thread. Matrix products are BLAS's, called from compiled
code where its address is known; softmax and its derivative work in place. Dropout's numbers are a
function of their place, so that both passes draw them again. It needs no running
softmax over blocks of keys: one block's scores fit the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.attention import Dropout
from cerebras_tf.kernels.blas import SGEMM, gemm
from cerebras_tf.kernels.compiled_blas import sgemm
from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_math import exp, log
from cerebras_tf.kernels.compiled_random import WHOLE, Stream, stream_of, uniform_row
from cerebras_tf.kernels.compiled_row_reductions import exp_in_place, row_max
from cerebras_tf.kernels.compiled_small_gemm import small_product
from cerebras_tf.kernels.compiled_threads import chunks_of, for_chunks, spread, threads
from cerebras_tf.kernels.scratch import borrowed, rounded

F = np.float32
Operands = tuple[np.ndarray, ...]
# Queries of a block: fewer skip more of what a causal mask hides, more make larger products. Best
# of 64, 96, 128, 192 and 256 for length 512 and width 64.
QUERIES = 96
# Random numbers drawn at once for rows of dropout that are shorter: a draw has a cost of its own.
DRAWN = 512


class Rows(NamedTuple):
    """What the softmax of rows of scores reads and writes besides them.

    Attributes:
        scale: of scores.
        causal: whether query i sees keys up to i + T - S only.
        bias: rows of T numbers; none for no bias.
        bias_row: row of the first head and query.
        bias_head: rows from head to head.
        bias_query: rows from query to query.
        lse: [heads, queries], for logarithms of sums.
        head: the first head there.
        query: the first query there.
    """

    scale: np.float32
    causal: bool
    bias: np.ndarray
    bias_row: int
    bias_head: int
    bias_query: int
    lse: np.ndarray
    head: int
    query: int


@jit(any_order=True)
def softmax_scores(
    start,
    stop,
    scores,
    scale,
    visible,
    step,
    bias,
    bias_row,
    bias_head,
    bias_query,
    lse,
    first_head,
    first_query,
):
    """Rows of softmax(scale scores + bias), in place, and their lse [A, S].

    Row r belongs to head r // Q and query r % Q of the block; it sees visible + step query keys,
    or all keys where that is more. A row that sees none becomes NaN.
    """
    queries, keys = scores.shape[1], scores.shape[2]
    for r in range(start, stop):
        head, query = divmod(r, queries)
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
    start,
    stop,
    scores,
    dscores,
    scale,
    visible,
    step,
    bias,
    bias_row,
    bias_head,
    bias_query,
    lse,
    first_head,
    first_query,
):
    """Scores become probabilities, their cotangents dp become ds = scale p (dp - sum(p dp))."""
    queries, keys = scores.shape[1], scores.shape[2]
    for r in range(start, stop):
        head, query = divmod(r, queries)
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
def drop_row(row, numbers, rate, kept_scale):
    """A row of probabilities scaled where its number is at least the rate, else 0."""
    for j in range(row.size):
        row[j] = row[j] * kept_scale if numbers[j] >= rate else F(0)


@inlined
def _room(drop, keys):
    """How many rows' numbers are drawn at once, where most of each is seen, and memory for them."""
    together = max(1, DRAWN // max(1, drop.keys)) if drop.keys <= 2 * keys else 1
    return together, np.empty(together * max(drop.keys, keys) + WHOLE + 3, np.float32)


@inlined
def _drawn(drop, first, last, queries, seen, memory):
    """Numbers of rows of one head, drop.keys a row; of a single row those that are seen."""
    row = drop.row + drop.queries * (first // queries) + first % queries
    size = seen if last - first == 1 else drop.keys * (last - first)
    return uniform_row(drop.stream, drop.keys * row, size, memory)


@inlined
def _drop_rows(scores, drop, first, last, visible, step, numbers):
    """Drops of what rows of one head see, by their numbers."""
    queries, keys = scores.shape[1], scores.shape[2]
    for r in range(first, last):
        query = r % queries
        seen = max(0, min(keys, visible + step * query))
        own = numbers[drop.keys * (r - first) :]
        drop_row(scores[r // queries, query, :seen], own, drop.rate, drop.kept_scale)


@jit()
def dropped_softmax_scores(start, stop, scores, drop, scale, visible, step, *rest):
    """softmax_scores, then dropout of what each row sees; lse stays the softmax's."""
    queries, keys = scores.shape[1], scores.shape[2]
    together, memory = _room(drop, keys)
    softmax_scores(start, stop, scores, scale, visible, step, *rest)
    first = start
    while first < stop:
        last = min(first + together, stop, (first // queries + 1) * queries)
        seen = max(0, min(keys, visible + step * (first % queries)))
        numbers = _drawn(drop, first, last, queries, seen, memory)
        _drop_rows(scores, drop, first, last, visible, step, numbers)
        first = last


@jit()
def dropped_softmax_scores_grad(start, stop, scores, dscores, drop, scale, visible, step, *rest):
    """As softmax_scores_grad, from cotangents of dropped probabilities, which scores become."""
    queries, keys = scores.shape[1], scores.shape[2]
    together, memory = _room(drop, keys)
    first = start
    while first < stop:
        last = min(first + together, stop, (first // queries + 1) * queries)
        seen = max(0, min(keys, visible + step * (first % queries)))
        numbers = _drawn(drop, first, last, queries, seen, memory)
        _drop_rows(dscores, drop, first, last, visible, step, numbers)
        softmax_scores_grad(first, last, scores, dscores, scale, visible, step, *rest)
        _drop_rows(scores, drop, first, last, visible, step, numbers)
        first = last


class AllDrops(NamedTuple):
    """Dropout of many heads, as `Drop`; each has `queries` rows of `keys` numbers."""

    rate: np.float32
    kept_scale: np.float32
    stream: Stream
    queries: int
    keys: int


def drops_of(dropout: Optional[Dropout], shape: Sequence[int]) -> Optional[AllDrops]:
    """The dropout of all heads, None for none; shape is [B, A, S, T], padded."""
    if dropout is None:
        return None
    stream = stream_of(dropout.step, dropout.seeds, math.prod(shape))
    return AllDrops(F(dropout.rate), F(dropout.kept_scale), stream, shape[2], shape[3])


def drop_of(drops, number):
    """The dropout of the head of a number; None for none."""
    if drops is None:
        return None
    row = number * drops.queries
    return Drop(drops.rate, drops.kept_scale, drops.stream, row, drops.queries, drops.keys)


drop_of_head = inlined(drop_of)


def block_size(queries: int, keys: int) -> int:
    """Scores of a block; derivatives take twice as many."""
    return min(QUERIES, queries) * keys


def block_bytes(queries: int, keys: int) -> int:
    """Bytes of them."""
    return rounded(4 * block_size(queries, keys))


class Kernels(NamedTuple):
    """Attention or its derivatives, of many heads.

    Attributes:
        compiled: of parts of the heads, for `spread`, with the number of the thread: (start, stop,
            thread, (numbers of heads, where each part begins among them, and the end), BLAS's
            address, queries of a block, operands, rooms of the threads, rows, drops).
        plain: `attend` or `attend_grad`, for where BLAS's address is not known.
        head: what `plain` takes of a head: (its number, operands, rows, drops).
    """

    compiled: Callable[..., None]
    plain: Callable[..., None]
    head: Callable[..., Any]


def run_heads(
    kernels: Kernels,
    parts: Sequence[np.ndarray],
    work: int,
    size: int,
    operands: Operands,
    rows: Any,
    drops: Optional[AllDrops],
) -> None:
    """Runs parts of heads on threads.

    Args:
        kernels: what to run.
        parts: numbers of heads, int64 [any].
        work: as `chunks_of` takes it.
        size: scores that a thread has room for.
        operands, rows, drops: of all heads, as kernels take them.
    """

    if not SGEMM:

        def run(i: int) -> None:
            for number in parts[i]:
                kernels.plain(*kernels.head(int(number), operands, rows, drops))

        for_chunks(run, len(parts), work)
        return
    bounds = np.cumsum([0, *map(len, parts)])
    given = (np.concatenate(parts), bounds), SGEMM, QUERIES, operands
    chunks = chunks_of(len(parts), work)
    count = threads() if chunks > 1 else 1
    with borrowed((count, size)) as rooms:
        spread(kernels.compiled, len(parts), chunks, *given, rooms, rows, drops, rooms=count)


def attend(operands: Operands, rows: Rows, drop: Optional[Drop]) -> None:
    """Attention of a head where BLAS's address is not known; else see `attend_head`.

    Args:
        operands: q [S, D], k and v [T, D], and what becomes the result, as q.
        rows: of the head.
        drop: its dropout; None for none.
    """
    q, k, v, out = operands
    keys = len(k)
    for some, seen, arguments in _blocks(len(q), keys, rows, drop):
        with borrowed((1, some.stop - some.start, seen)) as scores:
            gemm(q[some], k[:seen].T, scores[0])
            kernel = softmax_scores if drop is None else dropped_softmax_scores
            kernel(0, scores.shape[1], scores, *arguments)
            gemm(scores[0], v[:seen], out[some])


def attend_grad(operands: Operands, rows: Rows, drop: Optional[Drop]) -> None:
    """Derivatives of a head's attention; dk and dv become 0 where there is no query.

    Args:
        operands: the result's cotangent, q, k, v, and what become dq, dk, dv; see `attend`.
        rows: of the head, with the sums that `attend` found.
        drop: as `attend` was given it.
    """
    dout, q, k, v, dq, dk, dv = operands
    keys = len(k)
    if not len(q):  # else the first block's queries see all keys
        dk[:] = dv[:] = 0
    for some, seen, arguments in _blocks(len(q), keys, rows, drop):
        size = 1, some.stop - some.start, seen
        with borrowed(size) as scores, borrowed(size) as dscores:
            gemm(q[some], k[:seen].T, scores[0])
            gemm(dout[some], v[:seen].T, dscores[0])
            kernel = softmax_scores_grad if drop is None else dropped_softmax_scores_grad
            kernel(0, size[1], scores, dscores, *arguments)
            more = some.stop < len(q)
            gemm(scores[0].T, dout[some], dv[:seen], add=more)
            gemm(dscores[0].T, q[some], dk[:seen], add=more)
            gemm(dscores[0], k[:seen], dq[some])


def _blocks(
    queries: int, keys: int, rows: Rows, drop: Optional[Drop]
) -> Iterator[tuple[slice, int, tuple[Any, ...]]]:
    """Queries, keys that the last one sees, and what kernels take; the last ones first."""
    for stop in range(queries, 0, -QUERIES):
        start = max(0, stop - QUERIES)
        seen = max(0, min(keys, stop + keys - queries)) if rows.causal else keys
        moved = () if drop is None else (drop._replace(row=drop.row + start),)
        yield slice(start, stop), seen, (*moved, *_row_arguments(rows, start, queries, keys, seen))


def _row_arguments(rows, start, queries, keys, seen):
    """What kernels take from the scale on, for queries from `start` on."""
    return (
        rows.scale,
        start + 1 + keys - queries if rows.causal else seen,
        1 if rows.causal else 0,
        rows.bias,
        rows.bias_row + rows.bias_query * start,
        rows.bias_head,
        rows.bias_query,
        rows.lse,
        rows.head,
        rows.query + start,
    )


_row_arguments_of_block = inlined(_row_arguments)


@jit()
def _product(address, a, b, out, add):
    """out [M, N] = a [M, K] b [K, N], or added; what BLAS does not take has a row or column."""
    if not add and small_product(a, b, out):
        return
    if sgemm(address, a, b, out, add):
        return
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = out[i, j] if add else F(0)
            for n in range(a.shape[1]):
                total += a[i, n] * b[n, j]
            out[i, j] = total


@inlined
def _moved(drop, start):
    """The dropout of a head from one of its queries on."""
    row = drop.row + start
    return Drop(drop.rate, drop.kept_scale, drop.stream, row, drop.queries, drop.keys)


@inlined
def _softmax(scores, drop, start, arguments):
    """The probabilities of a block from query `start` on, in place."""
    if drop is None:
        softmax_scores(0, scores.shape[1], scores, *arguments)
    else:
        dropped_softmax_scores(0, scores.shape[1], scores, _moved(drop, start), *arguments)


@inlined
def _softmax_grad(scores, dscores, drop, start, arguments):
    if drop is None:
        softmax_scores_grad(0, scores.shape[1], scores, dscores, *arguments)
    else:
        moved = _moved(drop, start)
        dropped_softmax_scores_grad(0, scores.shape[1], scores, dscores, moved, *arguments)


@jit()
def attend_head(address, width, operands, room, rows, drop):
    """`attend` in compiled code.

    Args:
        address: of cblas_sgemm.
        width: queries of a block.
        operands, rows, drop: as `attend` takes them.
        room: float32, for a block of scores.
    """
    q, k, v, out = operands
    queries, keys = q.shape[0], k.shape[0]
    stop = queries
    while stop > 0:
        start = max(0, stop - width)
        seen = max(0, min(keys, stop + keys - queries)) if rows.causal else keys
        scores = room[: (stop - start) * seen].reshape(1, stop - start, seen)
        _product(address, q[start:stop], k[:seen].T, scores[0], False)
        _softmax(scores, drop, start, _row_arguments_of_block(rows, start, queries, keys, seen))
        _product(address, scores[0], v[:seen], out[start:stop], False)
        stop = start


@jit()
def attend_grad_head(address, width, operands, room, rows, drop):
    """`attend_grad` in compiled code.

    Args:
        address, width, rows, drop: as `attend_head` takes them.
        operands: as `attend_grad` takes them.
        room: float32, for two blocks of scores.
    """
    dout, q, k, v, dq, dk, dv = operands
    queries, keys = q.shape[0], k.shape[0]
    if queries == 0:  # else the first block's queries see all keys
        dk[:] = F(0)
        dv[:] = F(0)
    stop = queries
    while stop > 0:
        start = max(0, stop - width)
        seen = max(0, min(keys, stop + keys - queries)) if rows.causal else keys
        size = (stop - start) * seen
        scores = room[:size].reshape(1, stop - start, seen)
        dscores = room[size : 2 * size].reshape(1, stop - start, seen)
        _product(address, q[start:stop], k[:seen].T, scores[0], False)
        _product(address, dout[start:stop], v[:seen].T, dscores[0], False)
        arguments = _row_arguments_of_block(rows, start, queries, keys, seen)
        _softmax_grad(scores, dscores, drop, start, arguments)
        first = stop == queries
        _product(address, scores[0].T, dout[start:stop], dv[:seen], not first)
        _product(address, dscores[0].T, q[start:stop], dk[:seen], not first)
        _product(address, dscores[0], k[:seen], dq[start:stop], False)
        stop = start
