"""Compiled reductions in float32: pieces for rows, sums over leading, trailing or all axes,
finiteness.

Letters: N rows, H columns. Sums go in blocks of fixed size, so that errors grow with the square
root of a block and results do not depend on the number of cores. Sums over axes in the middle use
the plain kernel.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from cerebras_tf.kernels.compiled_intrinsics import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import ANY_ORDER, inlined, jit
from cerebras_tf.kernels.compiled_layout import all_float32, as_contiguous
from cerebras_tf.kernels.compiled_math import exp
from cerebras_tf.kernels.compiled_threads import chunks_or_one, parallel_chunks, parallel_for
from cerebras_tf.kernels.registry import compiled

F, WORD = np.float32, np.int32
_BLOCK = 1024
# -Inf as `_sortable` maps it.
_LEAST = WORD(-0x7F800001)


@inlined
def _sortable(bits):
    """Bits of a float32 as an integer of the same order, and back; mirrors negative numbers."""
    return WORD(bits ^ WORD(WORD(bits >> WORD(31)) & WORD(0x7FFFFFFF)))


@inlined
def row_max(row):
    """Largest element; -Inf for an empty row. It may miss a NaN, which callers must propagate
    themselves.

    Compares integers: LLVM does not vectorise a maximum of floats, which is 20 times slower.
    """
    top = _LEAST
    for j in range(row.size):
        element = _sortable(bits_of(row[j]))
        top = element if element > top else top
    return float_of(_sortable(top))


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def row_sum(row):
    """Sum of a row, in blocks."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        block = row[start : min(start + _BLOCK, row.size)]
        block_sum = F(0)
        for j in range(block.size):
            block_sum += block[j]
        total += block_sum
    return total


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def sum_of_exp(row, top):
    """Sum of e^(x - top), in blocks: one running sum over a vocabulary would lose digits."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        block = row[start : min(start + _BLOCK, row.size)]
        block_sum = F(0)
        for j in range(block.size):
            block_sum += exp(block[j] - top)
        total += block_sum
    return total


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def exp_into(row, top, out):
    """out = e^(row - top), not in place; returns the sum, in blocks as sum_of_exp."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        block = row[start : min(start + _BLOCK, row.size)]
        result = out[start : min(start + _BLOCK, row.size)]
        block_sum = F(0)
        for j in range(block.size):
            e = exp(block[j] - top)
            result[j] = e
            block_sum += e
        total += block_sum
    return total


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def exp_in_place(row, top):
    """row = e^(row - top); returns the sum. `exp_into` with one array twice would not vectorise."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        block = row[start : min(start + _BLOCK, row.size)]
        block_sum = F(0)
        for j in range(block.size):
            e = exp(block[j] - top)
            block[j] = e
            block_sum += e
        total += block_sum
    return total


@jit()
def _add_columns(start, stop, rows, total):
    columns = total[start:stop]
    for j in range(columns.size):
        columns[j] = F(0)
    for i in range(rows.shape[0]):
        row = rows[i, start:stop]
        for j in range(columns.size):
            columns[j] += row[j]


def add_rows(rows: np.ndarray, total: np.ndarray) -> None:
    """total [H] = sum of rows [N, H], both contiguous float32."""
    parallel_for(_add_columns, rows.shape[1], rows.size, rows, total)


F = np.float32
Out = tuple[np.ndarray, ...]
_BLOCK_ROWS = 128
_BLOCK_ELEMENTS = 1 << 14


def _reduced_axes(rank: int, axes: Any) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(rank))
    numbers: list[Any] = [axes] if np.isscalar(axes) else list(axes)
    return tuple(sorted({int(axis) % max(rank, 1) for axis in numbers}))


def _supports(x: Any, *, axes: Any = None, keepdims: bool = False) -> bool:
    if not all_float32(x):
        return False
    rank = len(x.shape)
    reduced = _reduced_axes(rank, axes)
    count = len(reduced)
    return count > 0 and reduced in (tuple(range(count)), tuple(range(rank - count, rank)))


@jit()
def _column_sums(start, stop, x, total):
    """total[b] [H] = sum of the rows of block b, for blocks [start, stop)."""
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
        block = x[b * length : min((b + 1) * length, x.size)]
        squares = F(0)
        for j in range(block.size):
            squares += block[j] * block[j]
        total[b] = squares


def _sum_all(x: np.ndarray, kernel: Any = _block_sums) -> np.float32:
    flat = x.reshape(-1)
    blocks = -(-flat.size // _BLOCK_ELEMENTS)
    partial = np.zeros(blocks, F)
    parallel_for(kernel, blocks, flat.size, flat, _BLOCK_ELEMENTS, partial)
    return F(partial.sum(dtype=np.float64))


def _sum_leading(rows: np.ndarray, total: np.ndarray) -> None:
    blocks = -(-len(rows) // _BLOCK_ROWS)
    if blocks <= 1:
        add_rows(rows, total)
        return
    partial = np.empty((blocks, rows.shape[1]), F)
    parallel_chunks(_column_sums, blocks, chunks_or_one(blocks, rows.size), rows, partial)
    _sum_leading(partial, total)


@compiled("sum", supports=_supports)
def sum(x, *, out, axes=None, keepdims=False):
    """Sum over leading axes, trailing axes or all axes, into the plain kernel's shape."""
    reduced = _reduced_axes(x.ndim, axes)
    x = as_contiguous(x)
    total = out[0].reshape(-1)
    if len(reduced) == x.ndim:
        total[0] = _sum_all(x)
        return
    if reduced[0] == 0:
        _sum_leading(x.reshape(-1, total.size) if total.size else x.reshape(0, 0), total)
        return
    rows = x.reshape(total.size, -1) if x.size else np.zeros((total.size, 0), F)
    parallel_for(_row_sums, len(rows), rows.size, rows, total)


@compiled("sum_of_squares", supports=all_float32)
def sum_of_squares(x, *, out):
    """Sum of the squares of all elements into a scalar."""
    out[0][...] = _sum_all(as_contiguous(x), _block_squares)


# Bits of the exponent; NaN and infinities have all of them set (IEEE 754-2019, section 3.4;
# bfloat16 has the upper half of float32's bits).
_EXPONENTS: dict[str, np.unsignedinteger[Any]] = {
    "float16": np.uint16(0x7C00),
    "bfloat16": np.uint16(0x7F80),
    "float32": np.uint32(0x7F800000),
    "float64": np.uint64(0x7FF0000000000000),
}


@jit()
def _max_masked(words, mask):
    largest = words[0] & mask
    for i in range(words.size):
        largest = max(largest, words[i] & mask)
    return largest


def all_finite(content: np.ndarray, dtype: str) -> bool:
    """Whether an array has neither NaN nor infinity, without a copy.

    Args:
        content: C-contiguous; bits for bfloat16.
        dtype: an IR dtype; True for integers and bool.
    """
    mask = _EXPONENTS.get(dtype)
    if mask is None or not content.size:
        return True
    return bool(_max_masked(content.reshape(-1).view(mask.dtype), mask) < mask)
