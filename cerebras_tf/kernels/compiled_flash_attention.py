"""Attention of one head by blocks of queries, float32: scores are never stored as a whole.

Letters: S query length, T key length, D head width; Q queries of a block, K keys that the block
sees. As in FlashAttention (Dao et al., 2022) each [Q, K] block of scores exists only in scratch
memory, one per thread, and the backward pass recomputes it from q, k and log(sum(e^scores)). A
block holds all K keys, which fit into L2, so no online softmax (rescaling of partial results) is
needed. GEMMs are called from compiled code if BLAS's address is known; softmax and its derivative
work in place. Dropout numbers are a function of their position (Philox), so both passes draw the
same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.attention import ROUNDED_LSE, Dropout
from cerebras_tf.kernels.blas import SGEMM, serial_gemm
from cerebras_tf.kernels.compiled_bfloat16 import round_operand
from cerebras_tf.kernels.compiled_blas import sgemm
from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_math import exp, log
from cerebras_tf.kernels.compiled_random import DRAW_UNIT, Stream, stream_of, uniform_row
from cerebras_tf.kernels.compiled_reduction import exp_in_place, row_max
from cerebras_tf.kernels.compiled_threads import (
    chunks_or_one,
    num_threads,
    parallel_chunks,
    parallel_tasks,
)
from cerebras_tf.kernels.compiled_unpacked_gemm import small_gemm
from cerebras_tf.kernels.scratch import borrow

F = np.float32
Operands = tuple[np.ndarray, ...]
# Queries of a block: fewer skip more of what a causal mask hides, more make larger products. Best
# of 64, 96, 128, 192 and 256 for length 512 and width 64.
QUERY_BLOCK = 96
# Least numbers drawn at once for dropout, because every draw has a fixed cost.
MIN_DRAW = 512


# Without sgemm's address the code that calls it runs in Python, with NumPy's products.
jit_with_sgemm: Any = jit() if SGEMM else lambda function: function
inlined_with_sgemm: Any = inlined if SGEMM else lambda function: function


class SoftmaxRows(NamedTuple):
    """What the softmax of a head's rows of scores reads and writes besides the scores.

    Attributes:
        causal: whether query i sees keys up to i + T - S only.
        bias: rows of T numbers; empty for no bias.
        bias_row: row of the first query.
        bias_query: rows between queries.
        lse: [heads, queries], log(sum(e^scores)).
        head: the head in lse.
        query: the first query in lse.
        rounded: whether operands of the products are rounded to bfloat16, and so must be the
            scores after the softmax and its derivative.
    """

    scale: np.float32
    causal: bool
    bias: np.ndarray
    bias_row: int
    bias_query: int
    lse: np.ndarray
    head: int
    query: int
    rounded: bool


class ScoreBlock(NamedTuple):
    """The rows of a block; query r of the block sees visible + step r keys, at most all.

    Attributes:
        rows: those of the head.
        start: the first query of the block.
    """

    rows: SoftmaxRows
    start: int
    visible: int
    step: int


@inlined
def score_block(rows, start, queries, keys, seen):
    """The block of queries from `start` on, of whose keys `seen` are visible to some query."""
    if rows.causal:
        return ScoreBlock(rows, start, start + 1 + keys - queries, 1)
    return ScoreBlock(rows, start, seen, 0)


@jit(any_order=True)
def softmax_row(r, scores, block):
    """softmax(scale scores + bias) of row r of [Q, K], in place; returns its lse.

    A row that sees no key becomes NaN.
    """
    rows, first, visible, step = block
    whole = scores[r]
    seen = max(0, min(scores.shape[1], visible + step * r))
    row = whole[:seen]
    if rows.bias.size:
        added = rows.bias[rows.bias_row + rows.bias_query * (first + r)]
        for j in range(seen):
            row[j] = row[j] * rows.scale + added[j]
    else:
        for j in range(seen):
            row[j] *= rows.scale
    hidden = F(0) if seen else F(np.nan)
    top = row_max(row)
    total = exp_in_place(row, top)
    inverse = F(1) / total
    for j in range(seen):
        row[j] *= inverse
    rest = whole[seen:]
    for j in range(rest.size):  # a range that does not begin at 0 would not vectorise
        rest[j] = hidden
    return top + log(total)


@jit(any_order=True)
def softmax_scores(start, stop, scores, block):
    """softmax(scale scores + bias) of rows [start, stop) of [Q, K], in place, and their lse."""
    rows, first = block.rows, block.start
    for r in range(start, stop):
        rows.lse[rows.head, rows.query + first + r] = softmax_row(r, scores, block)


@jit(any_order=True)
def softmax_scores_grad(start, stop, scores, dscores, block):
    """Scores become probabilities p, their cotangents dp become ds = scale p (dp - sum(p dp))."""
    keys, (rows, first, visible, step) = scores.shape[1], block
    for r in range(start, stop):
        p = scores[r]
        ds = dscores[r]
        seen = max(0, min(keys, visible + step * r))
        shift = rows.lse[rows.head, rows.query + first + r]
        if abs(shift) > ROUNDED_LSE:
            softmax_row(r, scores, block)
        elif rows.bias.size:
            added = rows.bias[rows.bias_row + rows.bias_query * (first + r)]
            for j in range(seen):
                p[j] = exp(p[j] * rows.scale + added[j] - shift)
        else:
            for j in range(seen):
                p[j] = exp(p[j] * rows.scale - shift)
        along = F(0)
        for j in range(seen):
            along += p[j] * ds[j]
        for j in range(seen):
            ds[j] = p[j] * (ds[j] - along) * rows.scale
        p_rest, ds_rest = p[seen:], ds[seen:]
        for j in range(p_rest.size):
            p_rest[j] = F(0)
        for j in range(ds_rest.size):
            ds_rest[j] = F(0)


class HeadDropout(NamedTuple):
    """Dropout of a head: its rows start at `row` of the numbers [B, A, S, T], with `keys` numbers
    each."""

    rate: np.float32
    kept_scale: np.float32
    stream: Stream
    row: int
    keys: int


@jit()
def drop_row(row, numbers, rate, kept_scale):
    """Scales probabilities whose number is at least the rate; others become 0."""
    for j in range(row.size):
        row[j] = row[j] * kept_scale if numbers[j] >= rate else F(0)


@inlined
def _draw_buffer(dropout, keys):
    """Rows whose numbers are drawn at once, if most of each are used, and memory for them."""
    rows_per_draw = max(1, MIN_DRAW // max(1, dropout.keys)) if dropout.keys <= 2 * keys else 1
    return rows_per_draw, np.empty(
        rows_per_draw * max(dropout.keys, keys) + DRAW_UNIT + 3, np.float32
    )


@inlined
def _draw(dropout, first, last, seen, memory):
    """Numbers of rows of a head, dropout.keys per row; for a single row only those of visible
    keys."""
    size = seen if last - first == 1 else dropout.keys * (last - first)
    return uniform_row(dropout.stream, dropout.keys * (dropout.row + first), size, memory)


@inlined
def _drop_rows(scores, dropout, first, last, block, numbers):
    """Applies dropout to the visible keys of rows."""
    keys = scores.shape[1]
    for r in range(first, last):
        seen = max(0, min(keys, block.visible + block.step * r))
        own = numbers[dropout.keys * (r - first) :]
        drop_row(scores[r, :seen], own, dropout.rate, dropout.kept_scale)


@jit()
def softmax_dropout_scores(scores, dropout, block):
    """softmax_scores of all rows, then dropout; lse is the softmax's."""
    queries, keys = scores.shape
    rows_per_draw, memory = _draw_buffer(dropout, keys)
    softmax_scores(0, queries, scores, block)
    for first in range(0, queries, rows_per_draw):
        last = min(first + rows_per_draw, queries)
        seen = max(0, min(keys, block.visible + block.step * first))
        numbers = _draw(dropout, first, last, seen, memory)
        _drop_rows(scores, dropout, first, last, block, numbers)


@jit()
def softmax_dropout_scores_grad(scores, dscores, dropout, block):
    """As softmax_scores_grad, with dropout; scores become probabilities after dropout."""
    queries, keys = scores.shape
    rows_per_draw, memory = _draw_buffer(dropout, keys)
    for first in range(0, queries, rows_per_draw):
        last = min(first + rows_per_draw, queries)
        seen = max(0, min(keys, block.visible + block.step * first))
        numbers = _draw(dropout, first, last, seen, memory)
        _drop_rows(dscores, dropout, first, last, block, numbers)
        softmax_scores_grad(first, last, scores, dscores, block)
        _drop_rows(scores, dropout, first, last, block, numbers)


class BatchDropout(NamedTuple):
    """Dropout of all heads of a batch, each with `queries` rows of `keys` numbers."""

    rate: np.float32
    kept_scale: np.float32
    stream: Stream
    queries: int
    keys: int


def batch_dropout(dropout: Optional[Dropout], shape: Sequence[int]) -> Optional[BatchDropout]:
    """Dropout of all heads; None for none. `shape` is the padded [B, A, S, T]."""
    if dropout is None:
        return None
    stream = stream_of(dropout.step, dropout.seeds, math.prod(shape))
    return BatchDropout(F(dropout.rate), F(dropout.kept_scale), stream, shape[2], shape[3])


@inlined_with_sgemm
def head_dropout(dropouts, number):
    """Dropout of one head by its number; None for none."""
    if dropouts is None:
        return None
    row = number * dropouts.queries
    return HeadDropout(dropouts.rate, dropouts.kept_scale, dropouts.stream, row, dropouts.keys)


def block_size(queries: int, keys: int) -> int:
    """Scores of a block; derivatives take twice as many."""
    return min(QUERY_BLOCK, queries) * keys


class Products(NamedTuple):
    """How the products of attention are computed.

    Attributes:
        sgemm: address of sgemm; 0 for NumPy's products, None for bfloat16 instructions.
        instructions: 1 for those of bfloat16; None for sgemm. Of a test for None, Numba compiles
            both branches unless the operand is None, so each kind has an argument that is None.
        config: address of AMX's tile configuration; None for AVX512-BF16.
        width: queries of a block.
    """

    sgemm: Optional[int]
    instructions: Optional[int]
    config: Optional[int]
    width: int


def run_heads(
    kernel: Callable[..., None],
    parts: Sequence[np.ndarray],
    work: int,
    size: int,
    operands: Operands,
    rows: Any,
    dropouts: Optional[BatchDropout],
    products: Products,
) -> None:
    """Runs chunks of heads on threads.

    Args:
        kernel: function (start, stop, thread, (head numbers, bounds of the chunks), the fields of
            Products, operands, workspaces, rows, dropouts), by `jit_with_sgemm`.
        parts: head numbers of each chunk, int64 [any].
        work: as for `chunks_or_one`.
        size: scores that fit into a thread's workspace.
        operands, rows, dropouts: of all heads.
    """
    bounds = np.cumsum([0, *map(len, parts)])
    given = (np.concatenate(parts), bounds), *products, operands
    if not SGEMM:

        def run(i: int) -> None:
            with borrow((1, size)) as workspaces:
                kernel(i, i + 1, 0, *given, workspaces, rows, dropouts)

        parallel_tasks(run, len(parts), work)
        return
    chunks = chunks_or_one(len(parts), work)
    count = num_threads() if chunks > 1 else 1
    with borrow((count, size)) as workspaces:
        last = workspaces, rows, dropouts
        parallel_chunks(kernel, len(parts), chunks, *given, *last, workspaces=count)


@jit()
def _sgemm(address, a, b, out, add):
    """out [M, N] = a [M, K] b [K, N], or added. sgemm does not take vectors; the loop does."""
    if not add and small_gemm(a, b, out):
        return
    if sgemm(address, a, b, out, add):
        return
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = out[i, j] if add else F(0)
            for n in range(a.shape[1]):
                total += a[i, n] * b[n, j]
            out[i, j] = total


def _numpy_gemm(address, a, b, out, add):
    serial_gemm(a, b, out, add)


_gemm = _sgemm if SGEMM else _numpy_gemm
# A compiled function would return the scale to Python as a float, which is float64 to the next one.
_score_block = score_block if SGEMM else score_block.py_func


@inlined
def _at_query(dropout, start):
    """The dropout of a head from query `start` on."""
    row = dropout.row + start
    return HeadDropout(dropout.rate, dropout.kept_scale, dropout.stream, row, dropout.keys)


@inlined
def softmax_block(scores, dropout, block):
    """The probabilities of a block, in place."""
    if dropout is None:
        softmax_scores(0, scores.shape[0], scores, block)
    else:
        softmax_dropout_scores(scores, _at_query(dropout, block.start), block)


@inlined
def softmax_grad(scores, dscores, dropout, block):
    """Scores of a block become probabilities, their cotangents those of the scores; in place."""
    if dropout is None:
        softmax_scores_grad(0, scores.shape[0], scores, dscores, block)
    else:
        softmax_dropout_scores_grad(scores, dscores, _at_query(dropout, block.start), block)


@jit()
def _round(scores):
    """Rounds a block to bfloat16, in place, as operands of bfloat16 products are rounded."""
    flat = scores.reshape(-1)
    round_operand(0, flat.size, flat, flat)


@jit_with_sgemm
def attention_head(address, width, operands, workspace, rows, dropout):
    """Attention of a head.

    Args:
        width: queries of a block.
        operands: q [S, D], k and v [T, D], and the result [S, D].
        workspace: float32, for a block of scores.
        dropout: HeadDropout; None for none.
    """
    q, k, v, out = operands
    queries, keys = q.shape[0], k.shape[0]
    stop = queries
    while stop > 0:
        start = max(0, stop - width)
        seen = max(0, min(keys, stop + keys - queries)) if rows.causal else keys
        scores = workspace[: (stop - start) * seen].reshape(stop - start, seen)
        _gemm(address, q[start:stop], k[:seen].T, scores, False)
        softmax_block(scores, dropout, _score_block(rows, start, queries, keys, seen))
        if rows.rounded:
            _round(scores)
        _gemm(address, scores, v[:seen], out[start:stop], False)
        stop = start


@jit_with_sgemm
def attention_head_grad(address, width, operands, workspace, rows, dropout, adds):
    """Derivatives of a head's attention; dk and dv become 0 if there is no query.

    Args:
        operands: the result's cotangent, q, k, v, and the results dq, dk, dv.
        workspace: float32, for two blocks of scores.
        address, width, rows, dropout: as for `attention_head`; rows.lse of the forward pass.
        adds: whether dk and dv are added to what is there, of another head with the same keys.
    """
    dout, q, k, v, dq, dk, dv = operands
    queries, keys = q.shape[0], k.shape[0]
    if queries == 0 and not adds:  # else the first block's queries see all keys
        dk[:] = F(0)
        dv[:] = F(0)
    stop = queries
    while stop > 0:
        start = max(0, stop - width)
        seen = max(0, min(keys, stop + keys - queries)) if rows.causal else keys
        size = (stop - start) * seen
        scores = workspace[:size].reshape(stop - start, seen)
        dscores = workspace[size : 2 * size].reshape(stop - start, seen)
        _gemm(address, q[start:stop], k[:seen].T, scores, False)
        _gemm(address, dout[start:stop], v[:seen].T, dscores, False)
        softmax_grad(scores, dscores, dropout, _score_block(rows, start, queries, keys, seen))
        if rows.rounded:
            _round(scores)
            _round(dscores)
        first = stop == queries and not adds
        _gemm(address, scores.T, dout[start:stop], dv[:seen], not first)
        _gemm(address, dscores.T, q[start:stop], dk[:seen], not first)
        _gemm(address, dscores, k[:seen], dq[start:stop], False)
        stop = start
