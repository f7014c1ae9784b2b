"""Compiled pieces that several kernels share: a row's maximum and sums."""

from __future__ import annotations

import numba
import numpy as np

from cerebras_tf.kernels.compiled_intrinsics import bits_of, float_of
from cerebras_tf.kernels.compiled_jit import ANY_ORDER, inlined, jit
from cerebras_tf.kernels.compiled_math import exp
from cerebras_tf.kernels.compiled_threads import for_rows

F, WORD = np.float32, np.int32
_BLOCK = 1024
# -Inf in the order of row_max.
_LEAST = WORD(-0x7F800001)


@inlined
def _ordered(bits):
    """Bits of a float32 as an integer of the same order, and back: negative ones are mirrored."""
    return WORD(bits ^ WORD(WORD(bits >> WORD(31)) & WORD(0x7FFFFFFF)))


@inlined
def row_max(row):
    """Largest element; -Inf of none. A NaN may be passed over, so callers must meet it again.

    By integers: a maximum of floating point numbers is not vectorised, and is 20 times slower.
    """
    top = _LEAST
    for j in range(row.size):
        element = _ordered(bits_of(row[j]))
        top = element if element > top else top
    return float_of(_ordered(top))


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def row_sum(row):
    """Sum of a row, in blocks."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        part = row[start : min(start + _BLOCK, row.size)]
        some = F(0)
        for j in range(part.size):
            some += part[j]
        total += some
    return total


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def sum_of_exp(row, top):
    """Sum of e^(x - top), in blocks: one running sum of a vocabulary would lose digits."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        part = row[start : min(start + _BLOCK, row.size)]
        some = F(0)
        for j in range(part.size):
            some += exp(part[j] - top)
        total += some
    return total


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def exp_into(row, top, out):
    """out = e^(row - top), in other memory; returns the sum, in blocks as sum_of_exp."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        part = row[start : min(start + _BLOCK, row.size)]
        result = out[start : min(start + _BLOCK, row.size)]
        some = F(0)
        for j in range(part.size):
            e = exp(part[j] - top)
            result[j] = e
            some += e
        total += some
    return total


@numba.njit(forceinline=True, fastmath=ANY_ORDER, boundscheck=False)
def exp_in_place(row, top):
    """row = e^(row - top); returns the sum. Two names of one array would not vectorise."""
    total = F(0)
    for start in range(0, row.size, _BLOCK):
        part = row[start : min(start + _BLOCK, row.size)]
        some = F(0)
        for j in range(part.size):
            e = exp(part[j] - top)
            part[j] = e
            some += e
        total += some
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
    for_rows(_add_columns, rows.shape[1], rows.size, rows, total)
