"""Calls of OpenBLAS's sgemm from compiled code. Python around each call would take longer than a
small product and delay the other threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from cerebras_tf.kernels.compiled_intrinsics import emits
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_threads import parallel_chunks

F = np.float32
# CBLAS's constants for row-major order, and for operands as they are or transposed.
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
_I32, _I64, _FLOAT, _VOID = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()
_POINTER = ir.IntType(8).as_pointer()


_PAIR, _TRIPLE = (types.containers.UniTuple(types.int64, count) for count in (2, 3))


@emits(types.void, types.int64, _PAIR, _TRIPLE, _TRIPLE, _TRIPLE, types.float32)
def _call_sgemm(builder, address, orders, sizes, operands, steps, beta):
    """cblas_sgemm at an address, with alpha = 1.

    Args are the orders of a and b, (M, N, K), and the addresses and elements between rows of a, b
    and c.
    """

    def ints(values: Any, count: int) -> list[Any]:
        chunks = [builder.extract_value(values, i) for i in range(count)]
        return [builder.trunc(part, _I32) for part in chunks]

    a_order, b_order = ints(orders, 2)
    a_step, b_step, c_step = ints(steps, 3)
    a, b, c = (builder.inttoptr(builder.extract_value(operands, i), _POINTER) for i in range(3))
    parameter_types = [_I32] * 6 + [_FLOAT, _POINTER, _I32, _POINTER, _I32, _FLOAT, _POINTER, _I32]
    function = builder.inttoptr(address, ir.FunctionType(_VOID, parameter_types).as_pointer())
    arguments = [_I32(ROW_MAJOR), a_order, b_order, *ints(sizes, 3), _FLOAT(1.0)]
    builder.call(function, [*arguments, a, a_step, b, b_step, beta, c, c_step])


@jit()
def sgemm(address, a, b, out, add):
    """out [M, N] = a [M, K] b [K, N], or out += a b; returns False and does nothing for other
    layouts.

    Args:
        address: of cblas_sgemm.
        a, b: float32, rows or columns contiguous.
        out: float32, rows contiguous.
    """
    rows, columns, inner = out.shape[0], out.shape[1], a.shape[1]
    if not _has_blas_layouts(a, b, out):
        return False
    a_order, a_step = _order(a)
    b_order, b_step = _order(b)
    _, c_step = _order(out)
    _call_sgemm(
        address,
        (a_order, b_order),
        (rows, columns, inner),
        (a.ctypes.data, b.ctypes.data, out.ctypes.data),
        (a_step, b_step, c_step),
        F(1) if add else F(0),
    )
    return True


@jit()
def _has_blas_layouts(a, b, out):
    """Whether BLAS can read and write the operands in place."""
    if min(out.shape[0], out.shape[1], a.shape[1]) < 2:
        return False
    return _order(a)[0] != 0 and _order(b)[0] != 0 and _order(out)[0] == PLAIN


@jit()
def _sgemm_range(start, stop, address, by_rows, a, b, out, add):
    """`sgemm` for rows, or columns, [start, stop) of out."""
    if by_rows:
        sgemm(address, a[start:stop], b, out[start:stop], add)
    else:
        sgemm(address, a, b[:, start:stop], out[:, start:stop], add)


def parallel_sgemm(
    address: int, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, chunks: int
) -> bool:
    """`sgemm` in chunks of the rows, or of the columns if there are more, on all threads."""
    length = max(out.shape)
    if length < 2 * chunks or not _has_blas_layouts(a, b, out):
        return False
    by_rows = out.shape[0] == length
    parallel_chunks(_sgemm_range, length, chunks, address, by_rows, a, b, out, add)
    return True


@jit()
def _order(array):
    """BLAS's order of a matrix with more than one row and column, and elements between its rows."""
    rows, columns = array.shape
    row_bytes, column_bytes = array.strides
    if array.itemsize != 4:
        return 0, 0
    if column_bytes == 4 and row_bytes >= 4 * columns:
        return PLAIN, row_bytes // 4
    if row_bytes == 4 and column_bytes >= 4 * rows:
        return TRANSPOSED, column_bytes // 4
    return 0, 0
