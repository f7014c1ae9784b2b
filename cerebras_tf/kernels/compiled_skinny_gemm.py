"""Products of a few rows with a matrix, as a token of each of a few prompts needs them.

Each weight serves so few multiplications that memory bounds the product. BLAS packs a copy of the
matrix first; here it is read once, as it lies, and sums stay in registers. On a Zen 5 4 rows take
0.45 of BLAS's processor time with the transpose of a [50257, 768] matrix, and 0.46 with one of
[768, 3072]; on a Zen 3, whose AVX2 has fewer registers, 0.5 with the transpose (1.5 with the other,
which is left to BLAS there).
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_register_blocks import (
    HAS_LONG_VECTORS,
    LANES,
    MOST_VECTORS,
    ROWS,
    TURNED,
    block_of_columns,
    block_of_rows,
)
from cerebras_tf.kernels.compiled_threads import for_rows

F = np.float32
LEAST_ROWS, MOST_ROWS = 2, 8  # BLAS has a kernel of its own for one
# Elements of a matrix that the caches do not hold anyway.
LEAST_ELEMENTS = 1 << 18
# Whether matrices with contiguous rows are taken: blocks of short vectors read too little of each.
TAKES_ROWS = HAS_LONG_VECTORS
_COLUMNS = LANES * MOST_VECTORS  # of a block
_INNER = 512  # numbers that one sum takes before it is added to the others, for precision

_block_of_columns, _block_of_rows = block_of_columns(MOST_VECTORS), block_of_rows(True)


def is_thin(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `thin_product` takes a product [M, K] times [K, N]; all have two dimensions."""
    return (
        LEAST_ROWS <= a.shape[0] <= MOST_ROWS
        and b.size >= LEAST_ELEMENTS
        and out.dtype == np.float32
        and out.flags.c_contiguous
        and (b.T.flags.c_contiguous or (TAKES_ROWS and b.flags.c_contiguous))
    )


def thin_product(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = a b, or out += a b, for operands that `is_thin` permits."""
    rows = np.zeros((-(-len(a) // ROWS) * ROWS, a.shape[1]), F)
    rows[: len(a)] = a
    if b.flags.c_contiguous:
        for_rows(_times_rows, -(-b.shape[1] // _COLUMNS), b.size, rows, b, out, add)
    else:
        for_rows(_times_columns, -(-b.shape[1] // TURNED), b.size, rows, b.T, out, add)


def are_vectors(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `vector_products` takes products [..., 1, K] times [..., K, N]."""
    return (
        out.shape[-2] == 1
        and out.dtype == np.float32
        and out.flags.c_contiguous
        and a.shape[:-2] == b.shape[:-2] == out.shape[:-2]
        and (b.flags.c_contiguous or b.swapaxes(-1, -2).flags.c_contiguous)
    )


def vector_products(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = a b, or out += a b, for operands that `are_vectors` permits.

    They are what attention to a cache makes of a new token: many products, each of which takes
    less time than a call.
    """
    (inner, columns), count = b.shape[-2:], out.size // max(1, b.shape[-1])
    vectors, sums = np.ascontiguousarray(a).reshape(count, inner), out.reshape(count, columns)
    if b.flags.c_contiguous:
        for_rows(_by_rows, count, b.size, vectors, b.reshape(count, inner, columns), sums, add)
    else:
        turned = b.swapaxes(-1, -2).reshape(count, columns, inner)
        for_rows(_by_columns, count, b.size, vectors, turned, sums, add)


@jit()
def _by_rows(start, stop, a, b, out, add):
    """Products `start` to `stop` of out [P, N] = a [P, K] b [P, K, N]."""
    inner, eights = a.shape[1], a.shape[1] // 8 * 8
    for p in range(start, stop):
        row, x, rows = out[p], a[p], b[p]
        if not add:
            row[:] = F(0)
        for k in range(0, eights, 8):
            x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
            x4, x5, x6, x7 = x[k + 4], x[k + 5], x[k + 6], x[k + 7]
            b0, b1, b2, b3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
            b4, b5, b6, b7 = rows[k + 4], rows[k + 5], rows[k + 6], rows[k + 7]
            for j in range(row.size):
                upper = x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j]
                lower = x4 * b4[j] + x5 * b5[j] + x6 * b6[j] + x7 * b7[j]
                row[j] += upper + lower
        for k in range(eights, inner):
            for j in range(row.size):
                row[j] += x[k] * rows[k, j]


@jit(any_order=True)
def _by_columns(start, stop, a, b, out, add):
    """Products `start` to `stop` of out [P, N] = a [P, K] times the transposes of b [P, N, K]."""
    for p in range(start, stop):
        row, x, rows = out[p], a[p], b[p]
        for n in range(row.size):
            total, weights = F(0), rows[n]
            for k in range(x.size):
                total += x[k] * weights[k]
            row[n] = total + (row[n] if add else F(0))


@jit()
def _times_rows(start, stop, a, b, out, add):
    """Blocks `start` to `stop` of columns of out [M, N] = a [M or more, K] b [K, N]."""
    inner, columns = b.shape
    sums = np.empty((ROWS, _COLUMNS), F)
    steps = a.strides[0], b.strides[0], sums.strides[0], a.strides[1]
    for left in range(start * _COLUMNS, min(stop * _COLUMNS, columns), _COLUMNS):
        right = min(left + _COLUMNS, columns)
        for first in range(0, inner, _INNER):
            last = min(first + _INNER, inner)
            part = b[first:last, left:right]
            for i in range(0, a.shape[0], ROWS):
                rows = a[i : i + ROWS, first:last]
                if right - left == _COLUMNS:
                    _block_of_columns(
                        rows.ctypes.data, part.ctypes.data, sums.ctypes.data, steps, last - first
                    )
                else:
                    _sums_of_columns(rows, part, sums)
                _set(out[i : i + ROWS, left:right], sums, add or first > 0)


@jit()
def _sums_of_columns(a, b, sums):
    """The same for fewer columns than a block has."""
    for i in range(a.shape[0]):
        row = sums[i, : b.shape[1]]
        row[:] = F(0)
        for k in range(a.shape[1]):
            x, weights = a[i, k], b[k]
            for j in range(row.size):
                row[j] += x * weights[j]


@jit()
def _times_columns(start, stop, a, b, out, add):
    """Blocks `start` to `stop` of columns of out [M, N] = a [M or more, K] times b [N, K]'s
    transpose."""
    columns, inner = b.shape
    sums = np.empty((ROWS, TURNED), F)
    steps = a.strides[0], b.strides[0], sums.strides[0], a.strides[1]
    whole = inner // LANES * LANES
    for n in range(start * TURNED, min(stop * TURNED, columns), TURNED):
        some = min(TURNED, columns - n)
        for i in range(0, a.shape[0], ROWS):
            rows, part = a[i : i + ROWS], b[n : n + some]
            if some == TURNED:
                _block_of_rows(rows.ctypes.data, part.ctypes.data, sums.ctypes.data, steps, inner)
                _add_dots(rows[:, whole:], part[:, whole:], sums)
            else:
                sums[:] = F(0)
                _add_dots(rows, part, sums)
            _set(out[i : i + ROWS, n : n + some], sums, add)


@jit(any_order=True)
def _add_dots(a, b, sums):
    """sums += a times the transpose of b."""
    for i in range(a.shape[0]):
        for n in range(b.shape[0]):
            total = F(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[n, k]
            sums[i, n] += total


@jit()
def _set(out, sums, add):
    """A part of the result, which may have fewer rows and columns than its sums."""
    for i in range(out.shape[0]):
        row, found = out[i], sums[i]
        for j in range(row.size):
            row[j] = found[j] + (row[j] if add else F(0))
