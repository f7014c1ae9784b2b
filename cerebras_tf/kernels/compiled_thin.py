"""Products of a few rows with a matrix, as a token of each of a few prompts needs them.

Each weight serves so few multiplications that memory bounds the product. BLAS packs a copy of the
matrix first; here it is read once, as it lies, and sums stay in registers. On a Zen 5 4 rows take
0.45 of BLAS's processor time with the transpose of a [50257, 768] matrix, and 0.46 with one of
[768, 3072].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_prefetch import ask_for_line
from cerebras_tf.kernels.compiled_threads import for_rows

F = np.float32
LEAST_ROWS, MOST_ROWS = 2, 8  # BLAS has a kernel of its own for one
# Elements of a matrix that the caches do not hold anyway.
LEAST_ELEMENTS = 1 << 18
# Of a block, whose sums stay in registers: rows of the first operand, numbers of a vector, vectors
# of a row of the second operand, and rows of it where it is transposed.
_ROWS, _LANES, _VECTORS, _TURNED = 4, 16, 6, 4
_COLUMNS = _LANES * _VECTORS
_INNER = 512  # numbers that one sum takes before it is added to the others, for precision

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * _LANES)


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
    rows = np.zeros((-(-len(a) // _ROWS) * _ROWS, a.shape[1]), F)
    rows[: len(a)] = a
    if b.flags.c_contiguous:
        for_rows(_times_rows, -(-b.shape[1] // _COLUMNS), b.size, rows, b, out, add)
    else:
        for_rows(_times_columns, -(-b.shape[1] // _TURNED), b.size, rows, b.T, out, add)


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
def _by_rows(start: Any, stop: Any, a: Any, b: Any, out: Any, add: Any) -> None:
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
def _by_columns(start: Any, stop: Any, a: Any, b: Any, out: Any, add: Any) -> None:
    """Products `start` to `stop` of out [P, N] = a [P, K] times the transposes of b [P, N, K]."""
    for p in range(start, stop):
        row, x, rows = out[p], a[p], b[p]
        for n in range(row.size):
            total, weights = F(0), rows[n]
            for k in range(x.size):
                total += x[k] * weights[k]
            row[n] = total + (row[n] if add else F(0))


def _pointer(builder: Any, address: Any, rows: Any, step: Any, offset: Any, type: Any) -> Any:
    """To what lies some rows of `step` bytes and an offset behind an address."""
    moved = builder.add(builder.add(address, builder.mul(_I64(rows), step)), offset)
    return builder.inttoptr(moved, type.as_pointer())


def _load(builder: Any, *place: Any) -> Any:
    return builder.load(_pointer(builder, *place), align=4)


def _sums(builder: Any, rows: int, columns: int) -> list[list[Any]]:
    return [
        [cgutils.alloca_once_value(builder, _ZERO) for _ in range(columns)] for _ in range(rows)
    ]


def _add_product(builder: Any, total: Any, x: Any, y: Any) -> None:
    """total += x y, in one rounding where the processor can."""
    type = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, type, "llvm.fmuladd.v16f32")
    builder.store(builder.call(function, [x, y, builder.load(total)]), total)


@intrinsic
def _block_of_columns(typingctx: Any, a: Any, b: Any, out: Any, steps: Any, inner: Any) -> Any:
    """out [_ROWS, _COLUMNS] = a [_ROWS, K] b [K, _COLUMNS], by addresses.

    `steps` are the bytes between rows of a, b and out; `inner` is K.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, out, steps, inner = args
        a_step, b_step, out_step = (builder.extract_value(steps, i) for i in range(3))
        totals = _sums(builder, _ROWS, _VECTORS)
        offsets = [_I64(4 * _LANES * j) for j in range(_VECTORS)]
        with cgutils.for_range(builder, inner) as loop:
            row = builder.add(b, builder.mul(loop.index, b_step))
            vectors = [_load(builder, row, 0, b_step, offset, _VECTOR) for offset in offsets]
            at = builder.shl(loop.index, _I64(2))
            for i, found in enumerate(totals):
                number = _load(builder, a, i, a_step, at, _FLOAT)
                undefined = ir.Constant(_VECTOR, ir.Undefined)
                first = builder.insert_element(undefined, number, _I32(0))
                order = ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)
                x = builder.shuffle_vector(first, undefined, order)
                for total, y in zip(found, vectors):
                    _add_product(builder, total, x, y)
        for i, found in enumerate(totals):
            for total, offset in zip(found, offsets):
                target = _pointer(builder, out, i, out_step, offset, _VECTOR)
                builder.store(builder.load(total), target, align=4)
        return context.get_dummy_value()

    return _block_signature(), generate


@intrinsic
def _block_of_rows(typingctx: Any, a: Any, b: Any, out: Any, steps: Any, inner: Any) -> Any:
    """out [_ROWS, _TURNED] = a [_ROWS, K] times the transpose of b [_TURNED, K]; as above.

    K is taken down to a multiple of _LANES. The next block is asked of memory meanwhile.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, out, steps, inner = args
        a_step, b_step, out_step = (builder.extract_value(steps, i) for i in range(3))
        totals = _sums(builder, _ROWS, _TURNED)
        byte = ir.IntType(8)
        with cgutils.for_range(builder, builder.udiv(inner, _I64(_LANES))) as loop:
            at = builder.mul(loop.index, _I64(4 * _LANES))
            for j in range(_TURNED, 2 * _TURNED):
                ahead = _pointer(builder, b, j, b_step, at, byte)
                ask_for_line(builder, ahead, 0, 3)
            vectors = [_load(builder, b, j, b_step, at, _VECTOR) for j in range(_TURNED)]
            for i, found in enumerate(totals):
                x = _load(builder, a, i, a_step, at, _VECTOR)
                for total, y in zip(found, vectors):
                    _add_product(builder, total, x, y)
        add_up = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR]),
            "llvm.vector.reduce.fadd.v16f32",
        )
        for i, found in enumerate(totals):
            for j, total in enumerate(found):
                given = [ir.Constant(_FLOAT, -0.0), builder.load(total)]
                number = builder.call(add_up, given, fastmath=("reassoc",))
                target = _pointer(builder, out, i, out_step, _I64(4 * j), _FLOAT)
                builder.store(number, target)
        return context.get_dummy_value()

    return _block_signature(), generate


def _block_signature() -> Any:
    steps = types.containers.UniTuple(types.int64, 3)
    return types.void(types.int64, types.int64, types.int64, steps, types.int64)


@jit()
def _times_rows(start: Any, stop: Any, a: Any, b: Any, out: Any, add: Any) -> None:
    """Blocks `start` to `stop` of columns of out [M, N] = a [M or more, K] b [K, N]."""
    inner, columns = b.shape
    sums = np.empty((_ROWS, _COLUMNS), F)
    steps = a.strides[0], b.strides[0], sums.strides[0]
    for left in range(start * _COLUMNS, min(stop * _COLUMNS, columns), _COLUMNS):
        right = min(left + _COLUMNS, columns)
        for first in range(0, inner, _INNER):
            last = min(first + _INNER, inner)
            part = b[first:last, left:right]
            for i in range(0, a.shape[0], _ROWS):
                rows = a[i : i + _ROWS, first:last]
                if right - left == _COLUMNS:
                    _block_of_columns(
                        rows.ctypes.data, part.ctypes.data, sums.ctypes.data, steps, last - first
                    )
                else:
                    _sums_of_columns(rows, part, sums)
                _set(out[i : i + _ROWS, left:right], sums, add or first > 0)


@jit()
def _sums_of_columns(a: Any, b: Any, sums: Any) -> None:
    """The same for fewer columns than a block has."""
    for i in range(a.shape[0]):
        row = sums[i, : b.shape[1]]
        row[:] = F(0)
        for k in range(a.shape[1]):
            x, weights = a[i, k], b[k]
            for j in range(row.size):
                row[j] += x * weights[j]


@jit()
def _times_columns(start: Any, stop: Any, a: Any, b: Any, out: Any, add: Any) -> None:
    """Blocks `start` to `stop` of columns of out [M, N] = a [M or more, K] times b [N, K]'s
    transpose."""
    columns, inner = b.shape
    sums = np.empty((_ROWS, _TURNED), F)
    steps = a.strides[0], b.strides[0], sums.strides[0]
    whole = inner // _LANES * _LANES
    for n in range(start * _TURNED, min(stop * _TURNED, columns), _TURNED):
        some = min(_TURNED, columns - n)
        for i in range(0, a.shape[0], _ROWS):
            rows, part = a[i : i + _ROWS], b[n : n + some]
            if some == _TURNED:
                _block_of_rows(rows.ctypes.data, part.ctypes.data, sums.ctypes.data, steps, inner)
                _add_dots(rows[:, whole:], part[:, whole:], sums)
            else:
                sums[:] = F(0)
                _add_dots(rows, part, sums)
            _set(out[i : i + _ROWS, n : n + some], sums, add)


@jit(any_order=True)
def _add_dots(a: Any, b: Any, sums: Any) -> None:
    """sums += a times the transpose of b."""
    for i in range(a.shape[0]):
        for n in range(b.shape[0]):
            total = F(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[n, k]
            sums[i, n] += total


@jit()
def _set(out: Any, sums: Any, add: Any) -> None:
    """A part of the result, which may have fewer rows and columns than its sums."""
    for i in range(out.shape[0]):
        row, found = out[i], sums[i]
        for j in range(row.size):
            row[j] = found[j] + (row[j] if add else F(0))
