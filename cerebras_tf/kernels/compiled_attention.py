"""Compiled attention, float32: every head of a batch, spread over threads.

Letters: B batch, S query length, T key length, A heads, D head width. What happens within a head
stands in compiled_heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np

from cerebras_tf.kernels.attention import Dropout, bias_and_dropout
from cerebras_tf.kernels.compiled_heads import Drop, Rows, attend, attend_grad, block_bytes
from cerebras_tf.kernels.compiled_layout import floats_are_float32, ordinary
from cerebras_tf.kernels.compiled_random import stream_of
from cerebras_tf.kernels.compiled_threads import for_chunks, threads
from cerebras_tf.kernels.registry import Scratch, compiled
from cerebras_tf.kernels.scratch import rounded

F = np.float32
Out = tuple[np.ndarray, ...]
# Products S T D up to which all heads of an item are one block: a call costs more than its
# arithmetic there, and NumPy's BLAS takes them one after another without waking its threads.
SHORT = 1 << 18


class _Bias(NamedTuple):
    """A bias as rows of T numbers, and the steps between rows along batch, heads and queries."""

    rows: np.ndarray
    batch: int
    head: int
    query: int

    def of(self, item: int, head: int, scale: float, causal: bool, lse: np.ndarray) -> Rows:
        """What the heads of an item from one on need of it, and of the rest."""
        row = self.batch * item + self.head * head
        bias = self.rows, row, self.head, self.query
        return Rows(F(scale), causal, *bias, lse[item], head, 0)


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


def _heads_first(array: np.ndarray) -> np.ndarray:
    """[B, S, A, D] as a view [B, A, S, D] whose last axis is contiguous."""
    if array.strides[3] != array.itemsize and array.shape[3] > 1:
        array = np.ascontiguousarray(array)
    return array.transpose(0, 2, 1, 3)


def _drop(
    dropout: Optional[Dropout], item: int, head: int, shape: tuple[int, int, int, int]
) -> Optional[Drop]:
    """Dropout of an item's heads from one on; shape is [B, A, S, T]."""
    if dropout is None:
        return None
    batch, heads, queries, keys = shape
    stream = stream_of(dropout.step, dropout.seeds, batch * heads * queries * keys)
    row = (item * heads + head) * queries
    return Drop(F(dropout.rate), F(dropout.kept_scale), stream, row, queries, keys)


def _scratch(query: Any, key: Any, *others: Any, **attrs: Any) -> Scratch:
    """One block of scores a thread."""
    (_, queries, heads, size), keys = query.shape, key.shape[1]
    if queries * keys * size <= SHORT:
        return Scratch(0, rounded(4 * heads * queries * keys))
    return Scratch(0, block_bytes(queries, keys))


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

    def run(item: int, some: slice) -> None:
        operands = [x[item, some] for x in (query, key, value, result)]
        rows = added.of(item, some.start, scale, causal, out[1])
        attend(operands, rows, _drop(dropped, item, some.start, shape))

    _for_heads(shape, size, 4 * batch * heads * queries * keys, run)


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

    def run(item: int, some: slice) -> None:
        operands = [x[item, some] for x in (cotangent, query, key, value, dq, dk, dv)]
        rows = added.of(item, some.start, scale, causal, sums)
        attend_grad(operands, rows, _drop(dropped, item, some.start, shape))

    _for_heads(shape, size, 8 * batch * heads * queries * keys, run)
