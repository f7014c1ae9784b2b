"""GEMM in float32 that reads its operands in place: products too small or too skinny for BLAS.

BLAS first packs copies of both operands (Goto and van de Geijn, Anatomy of High-Performance Matrix
Multiplication, 2008). That costs as much as the product itself if a matrix has a dozen rows
(attention in a short sequence) or if each weight is used for a few rows only (decoding a few
prompts). Here register-blocked micro-kernels of TILE_ROWS rows read B [K, N] by rows (outer
products) or B^T [N, K] by rows (dot products); sums stay in registers. Their sizes follow from the
register file: AVX-512 has 32 registers of 16 floats, AVX2 16 of 8.

`small_gemm` is called in compiled code. On one core of a Zen 4 it takes 0.4, 0.56 and 0.72 of
BLAS's time for [n, n] times [n, 64] with n of 8, 16 and 32, and 0.45 and 0.77 for [n, 64] times
[64, n] with n of 8 and 16; on a Zen 3 with AVX2 0.39, 0.5 and 0.55, and 0.36 and 0.7.

`skinny_gemm` is bound by memory: B is read once. On a Zen 5, 4 rows take 0.45 of BLAS's processor
time with the transpose of a [50257, 768] matrix, and 0.46 with a [768, 3072] matrix; on a Zen 3 0.5
with the transpose (1.5 with the other, which BLAS computes there).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from cerebras_tf.kernels.compiled_intrinsics import emit_prefetch, emits
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_threads import parallel_for
from cerebras_tf.kernels.instruction_set import features

HAS_AVX512 = "avx512f" in features()
# Micro-tile: rows, floats of a vector, the most vectors of a row, and columns of a tile of dot
# products. Accumulators, one row of B and one broadcast element of A fill the registers.
TILE_ROWS = 4
LANES, MAX_VECTORS, DOT_COLUMNS = (16, 6, 4) if HAS_AVX512 else (8, 3, 2)

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_STRIDES = types.containers.UniTuple(types.int64, 4)
_SIGNATURE = types.void, *[types.int64] * 3, _STRIDES, types.int64
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


def _pointer(builder, address, rows, step, offset, type):
    """Pointer to `rows` rows of `step` bytes plus an offset after an address."""
    moved = builder.add(builder.add(address, builder.mul(_I64(rows), step)), offset)
    return builder.inttoptr(moved, type.as_pointer())


def _load(builder, *place):
    return builder.load(_pointer(builder, *place), align=4)


def _accumulators(builder: Any, columns: int) -> list[list[Any]]:
    return [
        [cgutils.alloca_once_value(builder, _ZERO) for _ in range(columns)]
        for _ in range(TILE_ROWS)
    ]


def _multiply_add(builder, accumulator, x, y):
    """accumulator += x y, rounded once where the processor has FMA."""
    type = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, type, f"llvm.fmuladd.v{LANES}f32")
    builder.store(builder.call(function, [x, y, builder.load(accumulator)]), accumulator)


def outer_product_kernel(vectors: int) -> Any:
    """An intrinsic: out [TILE_ROWS, LANES vectors] = a [TILE_ROWS, K] b [K, LANES vectors].

    Its arguments are (a, b, out, strides, K): addresses, and the bytes between rows of a, b and out
    and between elements of a row of a.
    """

    @emits(*_SIGNATURE)
    def kernel(builder, a, b, out, strides, inner):
        a_stride, b_stride, out_stride, a_column_step = (
            builder.extract_value(strides, i) for i in range(4)
        )
        accumulators = _accumulators(builder, vectors)
        offsets = [_I64(4 * LANES * j) for j in range(vectors)]
        zero_mask = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        with cgutils.for_range(builder, inner) as loop:
            row = builder.add(b, builder.mul(loop.index, b_stride))
            b_vectors = [_load(builder, row, 0, b_stride, offset, _VECTOR) for offset in offsets]
            at = builder.mul(loop.index, a_column_step)
            for i, sums in enumerate(accumulators):
                number = _load(builder, a, i, a_stride, at, _FLOAT)
                first = builder.insert_element(undefined, number, _I32(0))
                x = builder.shuffle_vector(first, undefined, zero_mask)
                for accumulator, y in zip(sums, b_vectors):
                    _multiply_add(builder, accumulator, x, y)
        for i, sums in enumerate(accumulators):
            for accumulator, offset in zip(sums, offsets):
                target = _pointer(builder, out, i, out_stride, offset, _VECTOR)
                builder.store(builder.load(accumulator), target, align=4)

    return kernel


def dot_product_kernel(prefetches: bool) -> Any:
    """An intrinsic: out [TILE_ROWS, DOT_COLUMNS] = a [TILE_ROWS, K] times b [DOT_COLUMNS, K]^T.

    Arguments are those of `outer_product_kernel`; rows of a are contiguous, and K is rounded down
    to a multiple of LANES. `prefetches`: prefetch the rows of b of the next tile.
    """

    @emits(*_SIGNATURE)
    def kernel(builder, a, b, out, strides, inner):
        a_stride, b_stride, out_stride = (builder.extract_value(strides, i) for i in range(3))
        accumulators = _accumulators(builder, DOT_COLUMNS)
        byte = ir.IntType(8)
        with cgutils.for_range(builder, builder.udiv(inner, _I64(LANES))) as loop:
            at = builder.mul(loop.index, _I64(4 * LANES))
            for j in range(DOT_COLUMNS, 2 * DOT_COLUMNS if prefetches else DOT_COLUMNS):
                emit_prefetch(builder, _pointer(builder, b, j, b_stride, at, byte), 0, 3)
            b_vectors = [_load(builder, b, j, b_stride, at, _VECTOR) for j in range(DOT_COLUMNS)]
            for i, sums in enumerate(accumulators):
                x = _load(builder, a, i, a_stride, at, _VECTOR)
                for accumulator, y in zip(sums, b_vectors):
                    _multiply_add(builder, accumulator, x, y)
        horizontal_sum = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR]),
            f"llvm.vector.reduce.fadd.v{LANES}f32",
        )
        for i, sums in enumerate(accumulators):
            for j, accumulator in enumerate(sums):
                operands = [ir.Constant(_FLOAT, -0.0), builder.load(accumulator)]
                number = builder.call(horizontal_sum, operands, fastmath=("reassoc",))
                target = _pointer(builder, out, i, out_stride, _I64(4 * j), _FLOAT)
                builder.store(number, target)

    return kernel


_HAS_FMA = not {"avx512f", "fma"}.isdisjoint(features())
# Above so many multiplications packing pays off. Dot products need horizontal sums: they are used
# up to this many results for each element of a row.
MAX_WORK, _MAX_RESULTS_PER_K = 1 << 18, 6 if HAS_AVX512 else 12

# Powers of two, as the widths of attention heads are.
_WIDE = 4 if MAX_VECTORS >= 4 else 2
_tile_of_1, _tile_of_2, _tile_of_wide = (outer_product_kernel(count) for count in (1, 2, _WIDE))
_dot_tile = dot_product_kernel(False)


@jit()
def small_gemm(a, b, out):
    """out [M, N] = a [M, K] b [K, N]; returns False and does nothing if BLAS should compute it.

    Args:
        a: of any layout if rows of b are contiguous, else with contiguous rows.
        b: rows or columns contiguous.
        out: rows contiguous; must not overlap the operands.
    """
    (rows, columns), inner = out.shape, a.shape[1]
    if not _HAS_FMA or rows < TILE_ROWS or inner == 0 or rows * columns * inner > MAX_WORK:
        return False
    if out.strides[1] != 4:
        return False
    if b.strides[1] == 4 and columns >= LANES:
        strides = a.strides[0], b.strides[0], out.strides[0], a.strides[1]
        _outer_product_tiles(
            rows, columns, inner, a.ctypes.data, b.ctypes.data, out.ctypes.data, strides
        )
        return True
    if a.strides[1] != 4 or inner % LANES != 0 or rows * columns > _MAX_RESULTS_PER_K * inner:
        return False
    if b.strides[0] == 4 and columns >= DOT_COLUMNS:
        strides = a.strides[0], b.strides[1], out.strides[0], a.strides[1]
        _dot_product_tiles(
            rows, columns, inner, a.ctypes.data, b.ctypes.data, out.ctypes.data, strides
        )
        return True
    return False


@jit()
def _outer_product_tiles(rows, columns, inner, a, b, out, strides):
    """Tiles of one, two or _WIDE_VECTORS vectors; the last tiles overlap those before."""
    j = 0
    while j < columns:
        left = columns - j
        start = 4 * min(j, columns - LANES)
        for i in range(0, rows, TILE_ROWS):
            first = min(i, rows - TILE_ROWS)
            x, y = a + first * strides[0], out + first * strides[2] + start
            if left >= _WIDE * LANES:
                _tile_of_wide(x, b + start, y, strides, inner)
            elif left >= 2 * LANES:
                _tile_of_2(x, b + start, y, strides, inner)
            else:
                _tile_of_1(x, b + start, y, strides, inner)
        j += _WIDE * LANES if left >= _WIDE * LANES else 2 * LANES if left >= 2 * LANES else LANES


@jit()
def _dot_product_tiles(rows, columns, inner, a, b, out, strides):
    """Tiles of dot products; the last tiles overlap those before."""
    for i in range(0, rows, TILE_ROWS):
        first = min(i, rows - TILE_ROWS)
        for j in range(0, columns, DOT_COLUMNS):
            start = min(j, columns - DOT_COLUMNS)
            x, y = a + first * strides[0], out + first * strides[2] + 4 * start
            _dot_tile(x, b + start * strides[1], y, strides, inner)


F = np.float32
MIN_ROWS, MAX_ROWS = 2, 8  # BLAS has a kernel of its own for one
# Smaller matrices stay in the caches anyway.
MIN_ELEMENTS = 1 << 18
# Short vectors read too little of each row of a row-major matrix.
READS_ROW_MAJOR = HAS_AVX512
TILE_COLUMNS = LANES * MAX_VECTORS
_K_BLOCK = 512  # terms of one sum before it is added to the others, for precision

_outer_tile, _prefetching_dot_tile = outer_product_kernel(MAX_VECTORS), dot_product_kernel(True)


def is_skinny(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `skinny_gemm` takes [M, K] times [K, N]."""
    return (
        MIN_ROWS <= a.shape[0] <= MAX_ROWS
        and b.size >= MIN_ELEMENTS
        and out.dtype == np.float32
        and out.flags.c_contiguous
        and (b.T.flags.c_contiguous or (READS_ROW_MAJOR and b.flags.c_contiguous))
    )


def skinny_gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = a b, or out += a b, for operands that `is_skinny` accepts."""
    rows = np.zeros((-(-len(a) // TILE_ROWS) * TILE_ROWS, a.shape[1]), F)
    rows[: len(a)] = a
    if b.flags.c_contiguous:
        parallel_for(_skinny_outer, -(-b.shape[1] // TILE_COLUMNS), b.size, rows, b, out, add)
    else:
        parallel_for(_skinny_dots, -(-b.shape[1] // DOT_COLUMNS), b.size, rows, b.T, out, add)


def is_batched_gemv(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `batched_gemv` takes [..., 1, K] times [..., K, N]."""
    return (
        out.shape[-2] == 1
        and out.dtype == np.float32
        and out.flags.c_contiguous
        and a.shape[:-2] == b.shape[:-2] == out.shape[:-2]
        and (b.flags.c_contiguous or b.swapaxes(-1, -2).flags.c_contiguous)
    )


def batched_gemv(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = a b, or out += a b, for operands that `is_batched_gemv` accepts.

    Attention of one new token to a key-value cache: many products, each shorter than a call of
    BLAS.
    """
    (inner, columns), count = b.shape[-2:], out.size // max(1, b.shape[-1])
    vectors, tile = np.ascontiguousarray(a).reshape(count, inner), out.reshape(count, columns)
    if b.flags.c_contiguous:
        parallel_for(
            _gemv_outer, count, b.size, vectors, b.reshape(count, inner, columns), tile, add
        )
    else:
        transposed = b.swapaxes(-1, -2).reshape(count, columns, inner)
        parallel_for(_gemv_dots, count, b.size, vectors, transposed, tile, add)


@jit()
def _gemv_outer(start, stop, a, b, out, add):
    """Products [start, stop) of out [P, N] = a [P, K] b [P, K, N]."""
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
def _gemv_dots(start, stop, a, b, out, add):
    """Products [start, stop) of out [P, N] = a [P, K] times b [P, N, K]^T."""
    for p in range(start, stop):
        row, x, rows = out[p], a[p], b[p]
        for n in range(row.size):
            accumulator, weights = F(0), rows[n]
            for k in range(x.size):
                accumulator += x[k] * weights[k]
            row[n] = accumulator + (row[n] if add else F(0))


@jit()
def _skinny_outer(start, stop, a, b, out, add):
    """Column tiles [start, stop) of out [M, N] = a [M or more, K] b [K, N]."""
    inner, columns = b.shape
    tile = np.empty((TILE_ROWS, TILE_COLUMNS), F)
    strides = a.strides[0], b.strides[0], tile.strides[0], a.strides[1]
    for left in range(start * TILE_COLUMNS, min(stop * TILE_COLUMNS, columns), TILE_COLUMNS):
        right = min(left + TILE_COLUMNS, columns)
        for first in range(0, inner, _K_BLOCK):
            last = min(first + _K_BLOCK, inner)
            b_block = b[first:last, left:right]
            for i in range(0, a.shape[0], TILE_ROWS):
                rows = a[i : i + TILE_ROWS, first:last]
                if right - left == TILE_COLUMNS:
                    _outer_tile(
                        rows.ctypes.data,
                        b_block.ctypes.data,
                        tile.ctypes.data,
                        strides,
                        last - first,
                    )
                else:
                    _edge_tile(rows, b_block, tile)
                _write_tile(out[i : i + TILE_ROWS, left:right], tile, add or first > 0)


@jit()
def _edge_tile(a, b, tile):
    """A tile with fewer columns than TILE_COLUMNS."""
    for i in range(a.shape[0]):
        row = tile[i, : b.shape[1]]
        row[:] = F(0)
        for k in range(a.shape[1]):
            x, weights = a[i, k], b[k]
            for j in range(row.size):
                row[j] += x * weights[j]


@jit()
def _skinny_dots(start, stop, a, b, out, add):
    """Column tiles [start, stop) of out [M, N] = a [M or more, K] times b [N, K]^T."""
    columns, inner = b.shape
    tile = np.empty((TILE_ROWS, DOT_COLUMNS), F)
    strides = a.strides[0], b.strides[0], tile.strides[0], a.strides[1]
    whole = inner // LANES * LANES
    for n in range(start * DOT_COLUMNS, min(stop * DOT_COLUMNS, columns), DOT_COLUMNS):
        count = min(DOT_COLUMNS, columns - n)
        for i in range(0, a.shape[0], TILE_ROWS):
            rows, b_block = a[i : i + TILE_ROWS], b[n : n + count]
            if count == DOT_COLUMNS:
                _prefetching_dot_tile(
                    rows.ctypes.data, b_block.ctypes.data, tile.ctypes.data, strides, inner
                )
                _add_dot_products(rows[:, whole:], b_block[:, whole:], tile)
            else:
                tile[:] = F(0)
                _add_dot_products(rows, b_block, tile)
            _write_tile(out[i : i + TILE_ROWS, n : n + count], tile, add)


@jit(any_order=True)
def _add_dot_products(a, b, tile):
    """tile += a b^T."""
    for i in range(a.shape[0]):
        for n in range(b.shape[0]):
            accumulator = F(0)
            for k in range(a.shape[1]):
                accumulator += a[i, k] * b[n, k]
            tile[i, n] += accumulator


@jit()
def _write_tile(out, tile, add):
    """Writes the rows and columns of a tile that exist."""
    for i in range(out.shape[0]):
        row, sums = out[i], tile[i]
        for j in range(row.size):
            row[j] = sums[j] + (row[j] if add else F(0))
