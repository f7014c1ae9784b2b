"""Compiled sums of float32 over leading axes, trailing axes, or all.

Letters: N rows, H columns. Sums go in blocks of fixed size, so that errors grow with the square
root of a block and results do not depend on the number of cores. Sums over axes in the middle are
left to the plain kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import all_float32, ordinary
from cerebras_tf.kernels.compiled_row_reductions import add_rows, row_sum
from cerebras_tf.kernels.compiled_threads import chunks_of, for_rows, spread
from cerebras_tf.kernels.registry import compiled

F = np.float32
Out = tuple[np.ndarray, ...]
_BLOCK_ROWS = 128
_BLOCK_ELEMENTS = 1 << 14


def _reduced(rank: int, axes: Any) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(rank))
    numbers: list[Any] = [axes] if np.isscalar(axes) else list(axes)
    return tuple(sorted({int(axis) % max(rank, 1) for axis in numbers}))


def _supports(x: Any, *, axes: Any = None, keepdims: bool = False) -> bool:
    if not all_float32(x):
        return False
    rank = len(x.shape)
    reduced = _reduced(rank, axes)
    count = len(reduced)
    return count > 0 and reduced in (tuple(range(count)), tuple(range(rank - count, rank)))


@jit()
def _column_sums(start, stop, x, total):
    """total[b] [H] = sum of the rows of block b, for blocks from start to stop."""
    for b in range(start, stop):
        own = total[b]
        for j in range(own.size):
            own[j] = F(0)
        for i in range(b * _BLOCK_ROWS, min((b + 1) * _BLOCK_ROWS, x.shape[0])):
            row = x[i]
            for j in range(own.size):
                own[j] += row[j]


@jit(any_order=True)
def _row_sums(start, stop, x, total):
    for i in range(start, stop):
        total[i] = row_sum(x[i])


@jit(any_order=True)
def _block_sums(start, stop, x, length, total):
    """total[b] = sum of elements b length to (b + 1) length."""
    for b in range(start, stop):
        total[b] = row_sum(x[b * length : min((b + 1) * length, x.size)])


@jit(any_order=True)
def _block_squares(start, stop, x, length, total):
    """total[b] = sum of the squares of elements b length to (b + 1) length."""
    for b in range(start, stop):
        part = x[b * length : min((b + 1) * length, x.size)]
        squares = F(0)
        for j in range(part.size):
            squares += part[j] * part[j]
        total[b] = squares


def _sum_all(x: np.ndarray, kernel: Any = _block_sums) -> np.float32:
    flat = x.reshape(-1)
    blocks = -(-flat.size // _BLOCK_ELEMENTS)
    partial = np.zeros(blocks, F)
    for_rows(kernel, blocks, flat.size, flat, _BLOCK_ELEMENTS, partial)
    return F(partial.sum(dtype=np.float64))


def _sum_leading(rows: np.ndarray, total: np.ndarray) -> None:
    blocks = -(-len(rows) // _BLOCK_ROWS)
    if blocks <= 1:
        add_rows(rows, total)
        return
    partial = np.empty((blocks, rows.shape[1]), F)
    spread(_column_sums, blocks, chunks_of(blocks, rows.size), rows, partial)
    _sum_leading(partial, total)


@compiled("sum", supports=_supports)
def sum(x: np.ndarray, *, out: Out, axes: Any = None, keepdims: bool = False) -> None:
    """Sum over leading axes, trailing axes or all axes, into the plain kernel's shape."""
    reduced = _reduced(x.ndim, axes)
    x = ordinary(x)
    total = out[0].reshape(-1)
    if len(reduced) == x.ndim:
        total[0] = _sum_all(x)
        return
    if reduced[0] == 0:
        _sum_leading(x.reshape(-1, total.size) if total.size else x.reshape(0, 0), total)
        return
    rows = x.reshape(total.size, -1) if x.size else np.zeros((total.size, 0), F)
    for_rows(_row_sums, len(rows), rows.size, rows, total)


@compiled("sum_of_squares", supports=all_float32)
def sum_of_squares(x: np.ndarray, *, out: Out) -> None:
    """Sum of the squares of all elements into a scalar."""
    out[0][...] = _sum_all(ordinary(x), _block_squares)
