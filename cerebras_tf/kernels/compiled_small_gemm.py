"""Small float32 products, as attention within a short sequence is made of.

BLAS packs copies of both operands, which takes as long as the product of a dozen rows itself. Here
they are read where they lie, and a last block of rows or columns begins before the end of the one
before it. On one core of a Zen 4, products of [n, n] and [n, 64] numbers take 0.4, 0.56 and 0.72 of
BLAS's time for n of 8, 16 and 32, and those of [n, 64] and [64, n], as dot products, 0.45 and 0.77
for 8 and 16; of a Zen 3 by AVX2 0.39, 0.5 and 0.55, and 0.36 and 0.7.
"""

from __future__ import annotations

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
from cerebras_tf.kernels.instruction_set import features

_FITS = not {"avx512f", "fma"}.isdisjoint(features())
# Multiplications above which BLAS's copies matter less. Dot products have sums of their own to
# make: they pay up to this many results for each number of a row.
MOST_WORK, _MOST_DOTS = 1 << 18, 6 if HAS_LONG_VECTORS else 12

# Vectors of a block's row: powers of two, as the widths of heads are.
_WIDE = 4 if MOST_VECTORS >= 4 else 2
_one_vector, _two_vectors, _wide = (block_of_columns(count) for count in (1, 2, _WIDE))
_dots = block_of_rows(False)


@jit()
def small_product(a, b, out):
    """out [M, N] = a [M, K] b [K, N] in float32; False, and nothing, where BLAS should.

    Args:
        a: of any layout where rows of b are contiguous, else of contiguous rows.
        b: rows or columns contiguous.
        out: rows contiguous; memory of its own.
    """
    (rows, columns), inner = out.shape, a.shape[1]
    if not _FITS or rows < ROWS or inner == 0 or rows * columns * inner > MOST_WORK:
        return False
    if out.strides[1] != 4:
        return False
    if b.strides[1] == 4 and columns >= LANES:
        steps = a.strides[0], b.strides[0], out.strides[0], a.strides[1]
        _by_columns(rows, columns, inner, a.ctypes.data, b.ctypes.data, out.ctypes.data, steps)
        return True
    if a.strides[1] != 4 or inner % LANES != 0 or rows * columns > _MOST_DOTS * inner:
        return False
    if b.strides[0] == 4 and columns >= TURNED:
        steps = a.strides[0], b.strides[1], out.strides[0], a.strides[1]
        _by_rows(rows, columns, inner, a.ctypes.data, b.ctypes.data, out.ctypes.data, steps)
        return True
    return False


@jit()
def _by_columns(rows, columns, inner, a, b, out, steps):
    """Blocks of one, two or _WIDE vectors; addresses, and bytes as block_of_columns takes."""
    j = 0
    while j < columns:
        left = columns - j
        start = 4 * min(j, columns - LANES)
        for i in range(0, rows, ROWS):
            first = min(i, rows - ROWS)
            x, y = a + first * steps[0], out + first * steps[2] + start
            if left >= _WIDE * LANES:
                _wide(x, b + start, y, steps, inner)
            elif left >= 2 * LANES:
                _two_vectors(x, b + start, y, steps, inner)
            else:
                _one_vector(x, b + start, y, steps, inner)
        j += _WIDE * LANES if left >= _WIDE * LANES else 2 * LANES if left >= 2 * LANES else LANES


@jit()
def _by_rows(rows, columns, inner, a, b, out, steps):
    """Blocks of dot products; addresses, and bytes as block_of_rows takes."""
    for i in range(0, rows, ROWS):
        first = min(i, rows - ROWS)
        for j in range(0, columns, TURNED):
            start = min(j, columns - TURNED)
            x, y = a + first * steps[0], out + first * steps[2] + 4 * start
            _dots(x, b + start * steps[1], y, steps, inner)
