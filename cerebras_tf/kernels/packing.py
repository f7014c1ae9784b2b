"""Plain kernels of ops on packed tokens: the definitions, sequence by sequence.

Letters: B sequences, S and K their padded lengths (queries, keys), T real tokens of all queries and
U of all keys, A heads of queries, G of keys and values, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebras_tf.kernels.attention import Softmax, attend, attend_backward, bias_and_dropout
from cerebras_tf.kernels.random import random_uniform
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
    """Rows of queries and keys of every sequence, and its dropout's multipliers."""
    _, dropped = bias_and_dropout(others, dropout)
    kept = None
    if dropped is not None:
        shape = (len(offsets_q) - 1, heads, *lengths)
        numbers = random_uniform(dropped.step, dropped.seeds, shape=shape, dtype="float32")
        kept = np.where(numbers >= np.float32(dropped.rate), dropped.kept_scale, 0.0)
    for item in range(len(offsets_q) - 1):
        queries = slice(offsets_q[item], offsets_q[item + 1])
        keys = slice(offsets_k[item], offsets_k[item + 1])
        kept_of_sequence = None
        if kept is not None:
            ends = queries.stop - queries.start, keys.stop - keys.start
            kept_of_sequence = kept[item : item + 1, :, : ends[0], : ends[1]]
        yield queries, keys, kept_of_sequence


@plain("packed_attention")
def packed_attention(
    q, k, v, offsets_q, offsets_k, *others, scale, causal, lengths, compute=None, **dropout
):
    """Attention within each sequence.

    Args:
        q: [T, A, D].
        k: [U, G, D].
        v: [U, G, D].
        offsets_q: [B + 1], starts of the sequences' queries, and T.
        offsets_k: [B + 1], starts of the sequences' keys, and U.
        others: with dropout the step, int64 [], and the seeds, int64 [2].
        scale: usually 1 / sqrt(D).
        causal: query i of a sequence sees its keys j <= i only.
        lengths: S and K; dropout's numbers have shape [B, A, S, K].
        compute: as for attention.
        dropout: rate and kept_scale, or neither.

    Returns:
        out [T, A, D], and log(sum(e^scores)) [A, T].
    """
    out, lse = np.zeros_like(q), np.zeros((q.shape[1], len(q)), q.dtype)
    for rows, keys, kept in _sequences(offsets_q, offsets_k, q.shape[1], lengths, others, dropout):
        if rows.stop > rows.start:
            softmax = Softmax(scale, causal, None, kept, compute)
            one, total = attend(q[None, rows], k[None, keys], v[None, keys], softmax)
            out[rows], lse[:, rows] = one[0], total[0]
    return out, lse


@plain("packed_attention_grad")
def packed_attention_grad(
    dout,
    q,
    k,
    v,
    out,
    lse,
    offsets_q,
    offsets_k,
    *others,
    scale,
    causal,
    lengths,
    compute=None,
    **dropout,
):
    """Derivatives of packed_attention's out: dq [T, A, D], dk [U, G, D], dv [U, G, D].

    Args are the cotangent dout [T, A, D], packed_attention's arguments, and its results out and
    lse.
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
                Softmax(scale, causal, None, kept, compute),
            )
            dq[rows], dk[keys], dv[keys] = (x[0] for x in found)
    return dq, dk, dv


@plain("random_uniform_rows")
def random_uniform_rows(rows, step, seeds, *, shape, axes, dtype):
    """Some rows of the numbers that random_uniform draws.

    Args:
        rows: [T], counted over the first `axes` axes of shape.
        step, seeds, shape: of random_uniform.
        axes: 1 or 2.

    Returns:
        [T, ...] for one axis, [1, T, ...] for two.
    """
    numbers = random_uniform(step, seeds, shape=shape, dtype=dtype)
    chosen = numbers.reshape(math.prod(shape[:axes]), *shape[axes:])[rows]
    return chosen if axes == 1 else chosen[None]
