"""Products of a few rows with a matrix, as a token of each of a few prompts needs them.

Each weight serves so few multiplications that memory bounds the product. BLAS packs a copy of the
matrix first; here it is read once, as it lies. On a Zen 5 4 rows take 0.59 of BLAS's processor time
with the transpose of a [50257, 768] matrix, and 0.65 with one of [768, 3072].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.kernels.compiled_jit import inlined, jit
from cerebras_tf.kernels.compiled_threads import for_rows

F = np.float32
LEAST_ROWS, MOST_ROWS = 2, 8  # BLAS has a kernel of its own for one
# Elements of a matrix that the caches do not hold anyway.
LEAST_ELEMENTS = 1 << 18
_COLUMNS, _INNER = 256, 256  # of a block, whose sums stay in the nearest cache


def is_thin(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `thin_product` takes a product [M, K] times [K, N]; all have two dimensions."""
    return (
        LEAST_ROWS <= a.shape[0] <= MOST_ROWS
        and b.size >= LEAST_ELEMENTS
        and out.dtype == np.float32
        and out.flags.c_contiguous
        and (b.flags.c_contiguous or b.T.flags.c_contiguous)
    )


def thin_product(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = a b, or out += a b, for operands that `is_thin` permits."""
    a = np.ascontiguousarray(a)
    if b.flags.c_contiguous:
        for_rows(_times_rows, b.shape[1], b.size, a, b, out, add)
    else:
        for_rows(_times_columns, b.shape[1], b.size, a, b.T, out, add)


@jit()
def _times_rows(start: Any, stop: Any, a: Any, b: Any, out: Any, add: Any) -> None:
    """Columns `start` to `stop` of out [M, N] = a [M, K] b [K, N]."""
    rows, inner = a.shape
    sums = np.empty((rows, _COLUMNS), F)
    for left in range(start, stop, _COLUMNS):
        right = min(left + _COLUMNS, stop)
        if not add:
            out[:, left:right] = F(0)
        for first in range(0, inner, _INNER):
            last = min(first + _INNER, inner)
            sums[:] = F(0)
            eights = first + (last - first) // 8 * 8
            for k in range(first, eights, 8):
                b0, b1, b2, b3 = (
                    b[k, left:right],
                    b[k + 1, left:right],
                    b[k + 2, left:right],
                    b[k + 3, left:right],
                )
                b4, b5, b6, b7 = (
                    b[k + 4, left:right],
                    b[k + 5, left:right],
                    b[k + 6, left:right],
                    b[k + 7, left:right],
                )
                for i in range(rows):
                    x, row = a[i, k : k + 8], sums[i]
                    x0, x1, x2, x3, x4, x5, x6, x7 = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
                    for j in range(b0.size):
                        upper = x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j]
                        lower = x4 * b4[j] + x5 * b5[j] + x6 * b6[j] + x7 * b7[j]
                        row[j] += upper + lower
            for k in range(eights, last):
                b0 = b[k, left:right]
                for i in range(rows):
                    x0, row = a[i, k], sums[i]
                    for j in range(b0.size):
                        row[j] += x0 * b0[j]
            for i in range(rows):
                row, target = sums[i], out[i, left:right]
                for j in range(target.size):
                    target[j] += row[j]


@jit(any_order=True)
def _times_columns(start: Any, stop: Any, a: Any, b: Any, out: Any, add: Any) -> None:
    """Columns `start` to `stop` of out [M, N] = a [M, K] times the transpose of b [N, K]."""
    rows, inner = a.shape
    pairs, twos = start + (stop - start) // 2 * 2, rows // 2 * 2
    for n in range(start, pairs, 2):
        left, right = b[n], b[n + 1]
        for i in range(0, twos, 2):
            upper, lower = a[i], a[i + 1]
            s00 = s01 = s10 = s11 = F(0)
            for k in range(inner):
                s00 += upper[k] * left[k]
                s01 += upper[k] * right[k]
                s10 += lower[k] * left[k]
                s11 += lower[k] * right[k]
            _set(out, i, n, s00, add)
            _set(out, i, n + 1, s01, add)
            _set(out, i + 1, n, s10, add)
            _set(out, i + 1, n + 1, s11, add)
        for i in range(twos, rows):
            upper, s00, s01 = a[i], F(0), F(0)
            for k in range(inner):
                s00 += upper[k] * left[k]
                s01 += upper[k] * right[k]
            _set(out, i, n, s00, add)
            _set(out, i, n + 1, s01, add)
    for n in range(pairs, stop):
        left = b[n]
        for i in range(rows):
            upper, s00 = a[i], F(0)
            for k in range(inner):
                s00 += upper[k] * left[k]
            _set(out, i, n, s00, add)


@inlined
def _set(out: Any, i: Any, n: Any, value: Any, add: Any) -> None:
    out[i, n] = value + (out[i, n] if add else F(0))
