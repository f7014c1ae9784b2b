"""Calls of BLAS from compiled code: what Python would do around each takes longer than a small
product itself, and holds the other threads up."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_threads import spread

F = np.float32
# CBLAS's numbers for rows behind each other, and for operands as they are or transposed.
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
_I32, _I64, _FLOAT, _VOID = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()
_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def _call_sgemm(typingctx, address, orders, sizes, operands, steps, beta):
    """cblas_sgemm at an address, alpha 1; orders (a, b), sizes (M, N, K), operands and steps
    (a, b, c): addresses, and elements between rows."""

    def generate(context, builder, signature, args):
        address, orders, sizes, operands, steps, beta = args

        def ints(values: Any, count: int) -> list[Any]:
            parts = [builder.extract_value(values, i) for i in range(count)]
            return [builder.trunc(part, _I32) for part in parts]

        a_order, b_order = ints(orders, 2)
        a_step, b_step, c_step = ints(steps, 3)
        a, b, c = (builder.inttoptr(builder.extract_value(operands, i), _POINTER) for i in range(3))
        taken = [_I32] * 6 + [_FLOAT, _POINTER, _I32, _POINTER, _I32, _FLOAT, _POINTER, _I32]
        function = builder.inttoptr(address, ir.FunctionType(_VOID, taken).as_pointer())
        given = [_I32(ROW_MAJOR), a_order, b_order, *ints(sizes, 3), _FLOAT(1.0)]
        builder.call(function, [*given, a, a_step, b, b_step, beta, c, c_step])
        return context.get_dummy_value()

    pair, triple = (types.containers.UniTuple(types.int64, count) for count in (2, 3))
    taken = (types.int64, pair, triple, triple, triple, types.float32)
    return types.void(*taken), generate


@jit()
def sgemm(address, a, b, out, add):
    """out [M, N] = a [M, K] b [K, N] in float32, or added; False, and nothing, for other layouts.

    Args:
        address: of cblas_sgemm.
        a: rows or columns contiguous.
        b: the same.
        out: rows contiguous.
        add: whether to add into `out`.
    """
    rows, columns, inner = out.shape[0], out.shape[1], a.shape[1]
    if not _has_orders(a, b, out):
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
def _has_orders(a, b, out):
    """Whether BLAS reads and writes these as they lie."""
    if min(out.shape[0], out.shape[1], a.shape[1]) < 2:
        return False
    return _order(a)[0] != 0 and _order(b)[0] != 0 and _order(out)[0] == PLAIN


@jit()
def _sgemm_range(start, stop, address, by_rows, a, b, out, add):
    """`sgemm` for rows, or columns, from start to stop of out."""
    if by_rows:
        sgemm(address, a[start:stop], b, out[start:stop], add)
    else:
        sgemm(address, a, b[:, start:stop], out[:, start:stop], add)


def spread_sgemm(
    address: int, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool, parts: int
) -> bool:
    """`sgemm` in so many parts of the rows, or of the columns where there are more, on threads."""
    length = max(out.shape)
    if length < 2 * parts or not _has_orders(a, b, out):  # a part has two at least
        return False
    by_rows = out.shape[0] == length
    spread(_sgemm_range, length, parts, address, by_rows, a, b, out, add)
    return True


@jit()
def _order(array):
    """How BLAS reads a matrix of more than one row and column, and elements between its rows."""
    rows, columns = array.shape
    row_bytes, column_bytes = array.strides
    if array.itemsize != 4:
        return 0, 0
    if column_bytes == 4 and row_bytes >= 4 * columns:
        return PLAIN, row_bytes // 4
    if row_bytes == 4 and column_bytes >= 4 * rows:
        return TRANSPOSED, column_bytes // 4
    return 0, 0
