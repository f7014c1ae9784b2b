"""Compiled attention of packed tokens, float32, and draws of some rows.

Letters: B sequences, S and K their padded lengths (of queries, of keys), T real tokens of all
queries and U of all keys, A heads, D head width. Short sequences run in one call each for many
heads, without BLAS, whose calls would cost more than their arithmetic; long ones in the blocks of
compiled_attention.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels.attention import Dropout, bias_and_dropout
from cerebras_tf.kernels.compiled_heads import (
    Drop,
    Rows,
    attend,
    attend_grad,
    block_bytes,
    drop_row,
)
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import floats_are_float32, ordinary
from cerebras_tf.kernels.compiled_math import log
from cerebras_tf.kernels.compiled_random import Stream, stream_of, uniform_row
from cerebras_tf.kernels.compiled_rows import exp_in_place, row_max
from cerebras_tf.kernels.compiled_threads import for_chunks, for_rows, threads
from cerebras_tf.kernels.packing import Lengths
from cerebras_tf.kernels.random import Seeds, Step
from cerebras_tf.kernels.registry import Scratch, compiled

F = np.float32
Out = tuple[np.ndarray, ...]
# Queries and keys of a sequence up to which no BLAS is called: about where both take equally long
# for widths 32 to 64.
SHORTEST = 56
_NO_BIAS = np.empty((0, 0), F)


class _Sequences:
    """Sequences by length, and what dropout needs.

    Attributes:
        short: numbers of the sequences that have few queries and keys, or none.
        long: numbers of those that have more of one of them, and queries; those with most scores
            first, so that threads end together.
        unread: numbers of the rest, which have many keys that no query reads.
        longest: most queries or keys of a short sequence.
        scores: scores of short sequences, of all heads.
        long_scores: those of long ones.
    """

    def __init__(self, queries: np.ndarray, keys: np.ndarray, heads: int, lengths: Lengths) -> None:
        self.queries, self.keys = (np.array(x, np.int64) for x in (queries, keys))
        self.heads, self.lengths = heads, lengths
        counts = np.stack([np.diff(self.queries), np.diff(self.keys)])
        small = counts.max(axis=0) <= SHORTEST
        self.short = np.flatnonzero(small)
        order = np.argsort(-(counts[0] * counts[1]), kind="stable")
        self.long = [int(item) for item in order if not small[item] and counts[0, item]]
        self.unread = [int(item) for item in np.flatnonzero(~small & (counts[0] == 0))]
        self.longest = int(counts[:, small].max(initial=1))
        self.scores = int((counts[0] * counts[1])[small].sum()) * heads
        self.long_scores = int((counts[0] * counts[1])[~small].sum()) * heads

    def stream(self, dropout: Optional[Dropout]) -> Stream:
        """The numbers of dropout; without it some that nobody reads."""
        if dropout is None:
            return stream_of(0, (0, 0), 1)
        size = (len(self.queries) - 1) * self.heads * self.lengths[0] * self.lengths[1]
        return stream_of(dropout.step, dropout.seeds, size)

    def arguments(self, dropout: Optional[Dropout], scale: float, causal: bool) -> tuple[Any, ...]:
        """What the kernels of short sequences take in front of tensors."""
        rate, kept = (0.0, 1.0) if dropout is None else (dropout.rate, dropout.kept_scale)
        padded = np.array(self.lengths, np.int64)
        drop = (F(rate), F(kept), self.stream(dropout), padded, dropout is not None)
        return self.short, self.queries, self.keys, self.longest, F(scale), bool(causal), *drop

    def places(self, item: int) -> tuple[slice, slice]:
        """Where the queries of a sequence lie, and its keys."""
        mine, theirs = (slice(int(x[item]), int(x[item + 1])) for x in (self.queries, self.keys))
        return mine, theirs

    def for_long(self, run: Any, width: int) -> None:
        """run(item, head) for the heads of long sequences, several on a thread."""
        pairs = [(item, head) for item in self.long for head in range(self.heads)]
        chunks = min(len(pairs), 4 * threads())

        def part(i: int) -> None:
            for pair in pairs[i::chunks]:
                run(*pair)

        for_chunks(part, chunks, self.long_scores * width // 8)


@jit(any_order=True)
def _dots(x: Any, rows: Any, begin: Any, head: Any, count: Any, scale: Any, out: Any) -> None:
    """out[j] = scale x . rows[begin + j, head] for j < count; four at once, some of them twice."""
    width = x.size
    for group in range((count + 3) // 4 if count >= 4 else 0):
        j = min(4 * group, count - 4)
        at = begin + j
        r0, r1, r2, r3 = rows[at, head], rows[at + 1, head], rows[at + 2, head], rows[at + 3, head]
        s0, s1, s2, s3 = F(0), F(0), F(0), F(0)
        for d in range(width):
            s0 += x[d] * r0[d]
            s1 += x[d] * r1[d]
            s2 += x[d] * r2[d]
            s3 += x[d] * r3[d]
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0 * scale, s1 * scale, s2 * scale, s3 * scale
    for j in range(count if count < 4 else 0):
        row, total = rows[begin + j, head], F(0)
        for d in range(width):
            total += x[d] * row[d]
        out[j] = total * scale


@jit(any_order=True)
def _combine(
    weights: Any, start: Any, rows: Any, begin: Any, head: Any, count: Any, out: Any
) -> None:
    """out = the sum of weights[start + j] rows[begin + j, head] over j < count, four at a time."""
    width, whole = out.size, count - count % 4
    for d in range(width):
        out[d] = F(0)
    for j in range(0, whole, 4):
        i, at = start + j, begin + j
        w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        r0, r1, r2, r3 = rows[at, head], rows[at + 1, head], rows[at + 2, head], rows[at + 3, head]
        for d in range(width):
            out[d] += w0 * r0[d] + w1 * r1[d] + w2 * r2[d] + w3 * r3[d]
    for j in range(whole, count):
        weight, row = weights[start + j], rows[begin + j, head]
        for d in range(width):
            out[d] += weight * row[d]


@jit(any_order=True)
def _short_attention(
    start: Any,
    stop: Any,
    items: Any,
    first_q: Any,
    first_k: Any,
    longest: Any,
    scale: Any,
    causal: Any,
    rate: Any,
    kept_scale: Any,
    stream: Any,
    padded: Any,
    drops: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
) -> None:
    """Attention of pairs start to stop of (short sequence, head), a query at a time."""
    heads = q.shape[1]
    scores = np.empty(longest, np.float32)
    memory = np.empty(longest + 8, np.float32)
    for pair in range(start, stop):
        item, head = items[pair // heads], pair % heads
        begin, keys = first_k[item], first_k[item + 1] - first_k[item]
        for i in range(first_q[item + 1] - first_q[item]):
            seen = min(i + 1, keys) if causal else keys
            row = scores[:seen]
            _dots(q[first_q[item] + i, head], k, begin, head, seen, scale, row)
            top = row_max(row)
            total = exp_in_place(row, top)
            inverse = F(1) / total
            for j in range(seen):
                row[j] *= inverse
            lse[head, first_q[item] + i] = top + log(total)
            if drops:
                place = ((item * heads + head) * padded[0] + i) * padded[1]
                drop_row(row, uniform_row(stream, place, seen, memory), rate, kept_scale)
            _combine(row, 0, v, begin, head, seen, out[first_q[item] + i, head])


@jit(any_order=True)
def _slopes(p: Any, dp: Any, scale: Any) -> None:
    """dp = scale p (dp - p . dp): the gradient of a softmax by its scores."""
    along = F(0)
    for j in range(p.size):
        along += p[j] * dp[j]
    for j in range(p.size):
        dp[j] = p[j] * (dp[j] - along) * scale


@jit(any_order=True)
def _short_attention_grad(
    start: Any,
    stop: Any,
    items: Any,
    first_q: Any,
    first_k: Any,
    longest: Any,
    scale: Any,
    causal: Any,
    rate: Any,
    kept_scale: Any,
    stream: Any,
    padded: Any,
    drops: Any,
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
) -> None:
    """Derivatives of pairs start to stop of (short sequence, head): queries, then keys."""
    heads = q.shape[1]
    weights, slopes = np.empty(longest, np.float32), np.empty(longest, np.float32)
    # The same by keys, a row of queries each.
    turned_weights = np.empty((longest, longest), np.float32)
    turned_slopes = np.empty((longest, longest), np.float32)
    memory = np.empty(longest + 8, np.float32)
    for pair in range(start, stop):
        item, head = items[pair // heads], pair % heads
        begin, keys = first_k[item], first_k[item + 1] - first_k[item]
        first, queries = first_q[item], first_q[item + 1] - first_q[item]
        for i in range(queries):
            seen = min(i + 1, keys) if causal else keys
            at = first + i
            p, dp = weights[:seen], slopes[:seen]
            _dots(q[at, head], k, begin, head, seen, scale, p)
            _dots(dout[at, head], v, begin, head, seen, F(1), dp)
            exp_in_place(p, lse[head, at])
            numbers = memory
            if drops:
                place = ((item * heads + head) * padded[0] + i) * padded[1]
                numbers = uniform_row(stream, place, seen, memory)
                drop_row(dp, numbers, rate, kept_scale)
            _slopes(p, dp, scale)
            if drops:
                drop_row(p, numbers, rate, kept_scale)
            for j in range(seen):
                turned_weights[j, i] = p[j]
                turned_slopes[j, i] = dp[j]
            _combine(dp, 0, k, begin, head, seen, dq[at, head])
        for j in range(keys):
            skipped = min(j, queries) if causal else 0
            at, seeing = first + skipped, queries - skipped
            _combine(turned_slopes[j], skipped, q, at, head, seeing, dk[begin + j, head])
            _combine(turned_weights[j], skipped, dout, at, head, seeing, dv[begin + j, head])


def _scratch(query: Any, key: Any, *others: Any, lengths: Lengths, **attrs: Any) -> Scratch:
    """One block of scores a thread."""
    return Scratch(0, block_bytes(*lengths))


def _scratch_of_gradient(dout: Any, *operands: Any, **attrs: Any) -> Scratch:
    return Scratch(0, 2 * _scratch(*operands, **attrs).a_thread)


def _supports(*operands: Any, **attrs: Any) -> bool:
    heads_wide = [x for x in operands if len(x.shape) == 3]
    return floats_are_float32(*heads_wide)


def _head(
    sequences: _Sequences,
    item: int,
    head: int,
    dropout: Optional[Dropout],
    scale: float,
    causal: bool,
    lse: np.ndarray,
) -> tuple[Rows, Optional[Drop]]:
    """What a head of a long sequence needs besides its operands; lse is [A, T]."""
    rows = Rows(F(scale), causal, _NO_BIAS, 0, 0, 0, lse, head, int(sequences.queries[item]))
    if dropout is None:
        return rows, None
    row = (item * sequences.heads + head) * sequences.lengths[0]
    rate, kept = F(dropout.rate), F(dropout.kept_scale)
    return rows, Drop(rate, kept, sequences.stream(dropout), row, *sequences.lengths)


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
    heads, width = q.shape[1:]
    sequences = _Sequences(offsets_q, offsets_k, heads, lengths)
    query, key, value, (result, lse) = *(ordinary(x) for x in (q, k, v)), out

    def run(item: int, head: int) -> None:
        mine, theirs = sequences.places(item)
        operands = query[mine, head], key[theirs, head], value[theirs, head], result[mine, head]
        rest = _head(sequences, item, head, dropped, scale, causal, lse)
        attend(operands, *rest)

    given = sequences.arguments(dropped, scale, causal)
    pairs = len(sequences.short) * heads
    work = 2 * sequences.scores * width // 8
    for_rows(_short_attention, pairs, work, *given, query, key, value, result, lse)
    sequences.for_long(run, width)


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
    heads, width = q.shape[1:]
    sequences = _Sequences(offsets_q, offsets_k, heads, lengths)
    query, key, value, cotangent, sums = (ordinary(x) for x in (q, k, v, dout, lse))
    dq, dk, dv = out

    def run(item: int, head: int) -> None:
        mine, theirs = sequences.places(item)
        operands = cotangent[mine, head], query[mine, head], key[theirs, head], value[theirs, head]
        results = dq[mine, head], dk[theirs, head], dv[theirs, head]
        rest = _head(sequences, item, head, dropped, scale, causal, sums)
        attend_grad((*operands, *results), *rest)

    given = sequences.arguments(dropped, scale, causal)
    pairs = len(sequences.short) * heads
    work = 5 * sequences.scores * width // 8
    tensors = cotangent, query, key, value, sums, dq, dk, dv
    for_rows(_short_attention_grad, pairs, work, *given, *tensors)
    sequences.for_long(run, width)
    for item in sequences.unread:
        _, theirs = sequences.places(item)
        dk[theirs] = dv[theirs] = 0


@jit()
def _draw_rows(start: Any, stop: Any, rows: Any, stream: Any, out: Any) -> None:
    width = out.shape[1]
    memory = np.empty(width + 8, np.float32)
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
