"""Plain kernels of ops on packed tokens: the definitions, sequence by sequence.

Letters: B sequences, S and K their padded lengths (of queries, of keys), T real tokens of all
queries and U of all keys, A heads, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebras_tf.kernels.attention import Pair, Triple, attend, attend_backward, bias_and_dropout
from cerebras_tf.kernels.random import Seeds, Step, random_uniform
from cerebras_tf.kernels.registry import plain

Part = tuple[slice, slice, Any]
# Padded lengths of queries and of keys.
Lengths = tuple[int, int]


def _sequences(
    offsets_q: np.ndarray,
    offsets_k: np.ndarray,
    heads: int,
    lengths: Lengths,
    others: tuple[np.ndarray, ...],
    dropout: dict[str, Any],
) -> Iterator[Part]:
    """Rows of queries and of keys of every sequence, and what its dropout multiplies by."""
    _, dropped = bias_and_dropout(others, dropout)
    kept = None
    if dropped is not None:
        shape = (len(offsets_q) - 1, heads, *lengths)
        numbers = random_uniform(dropped.step, dropped.seeds, shape=shape, dtype="float32")
        kept = np.where(numbers >= np.float32(dropped.rate), dropped.kept_scale, 0.0)
    for item in range(len(offsets_q) - 1):
        queries = slice(offsets_q[item], offsets_q[item + 1])
        keys = slice(offsets_k[item], offsets_k[item + 1])
        own = None
        if kept is not None:
            ends = queries.stop - queries.start, keys.stop - keys.start
            own = kept[item : item + 1, :, : ends[0], : ends[1]]
        yield queries, keys, own


@plain("packed_attention")
def packed_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    offsets_q: np.ndarray,
    offsets_k: np.ndarray,
    *others: np.ndarray,
    scale: float,
    causal: bool,
    lengths: Lengths,
    **dropout: Any,
) -> Pair:
    """The attention of every sequence alone.

    Args:
        q: [T, A, D].
        k: [U, A, D].
        v: [U, A, D].
        offsets_q: [B + 1], where the sequences' queries begin, and T.
        offsets_k: [B + 1], where the sequences' keys begin, and U.
        others: with dropout the step, int64 [], and the seeds, int64 [2].
        scale: usually 1 / sqrt(D).
        causal: query i of a sequence sees its keys j <= i only.
        lengths: S and K, for the places of dropout's numbers [B, A, S, K].
        dropout: rate and kept_scale, or neither.

    Returns:
        out [T, A, D], and log(sum(e^scores)) [A, T].
    """
    out, lse = np.zeros_like(q), np.zeros((q.shape[1], len(q)), q.dtype)
    for rows, keys, kept in _sequences(offsets_q, offsets_k, q.shape[1], lengths, others, dropout):
        if rows.stop > rows.start:
            one, total = attend(
                q[None, rows], k[None, keys], v[None, keys], None, kept, scale, causal
            )
            out[rows], lse[:, rows] = one[0], total[0]
    return out, lse


@plain("packed_attention_grad")
def packed_attention_grad(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    offsets_q: np.ndarray,
    offsets_k: np.ndarray,
    *others: np.ndarray,
    scale: float,
    causal: bool,
    lengths: Lengths,
    **dropout: Any,
) -> Triple:
    """Derivatives of packed_attention's out: dq [T, A, D], dk [U, A, D], dv [U, A, D].

    Args:
        dout: [T, A, D] cotangent of out.
        q, k, v, offsets_q, offsets_k, others, scale, causal, lengths, dropout: as given to
            packed_attention.
        out: [T, A, D] and lse: [A, T], as it returned them.
    """
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for rows, keys, kept in _sequences(offsets_q, offsets_k, q.shape[1], lengths, others, dropout):
        if rows.stop > rows.start:
            found = attend_backward(
                dout[None, rows],
                q[None, rows],
                k[None, keys],
                v[None, keys],
                out[None, rows],
                lse[None, :, rows],
                None,
                kept,
                scale,
                causal,
            )
            dq[rows], dk[keys], dv[keys] = (x[0] for x in found)
    return dq, dk, dv


@plain("random_uniform_rows")
def random_uniform_rows(
    rows: np.ndarray, step: Step, seeds: Seeds, *, shape: tuple[int, ...], axes: int, dtype: str
) -> np.ndarray:
    """Some rows of the numbers that random_uniform draws.

    Args:
        rows: [T], counted over the first `axes` axes of shape.
        step: number of earlier invocations, int64 [].
        seeds: seed and seed2, int64 [2].
        shape: of all the numbers.
        axes: 1 or 2.
        dtype: of the result.

    Returns:
        [T, ...] for one axis, [1, T, ...] for two.
    """
    numbers = random_uniform(step, seeds, shape=shape, dtype=dtype)
    chosen = numbers.reshape(math.prod(shape[:axes]), *shape[axes:])[rows]
    return chosen if axes == 1 else chosen[None]
