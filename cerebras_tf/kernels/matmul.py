"""Matrix multiplication on arrays: NumPy's matmul is the definition.

BLAS does the work, or in bfloat16 the processor's instructions for it (compiled_bfloat16.py).

Transposed operands are views, which BLAS reads as they lie; nothing is copied for them. Which BLAS
it is, and how products spread over threads, blas.py decides.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels.bfloat16 import in_bfloat16
from cerebras_tf.kernels.blas import product, scratch_bytes
from cerebras_tf.kernels.half_precision import as_read, flushed
from cerebras_tf.kernels.registry import Scratch, compiled, plain


def _operand(array: np.ndarray, transpose: bool) -> np.ndarray:
    """The operand as it enters the product, copied only where BLAS cannot read it as it lies."""
    view = array.swapaxes(-1, -2) if transpose else array
    (rows, columns), (row_bytes, column_bytes) = view.shape[-2:], view.strides[-2:]
    by_rows = column_bytes == view.itemsize and row_bytes >= columns * view.itemsize
    by_columns = row_bytes == view.itemsize and column_bytes >= rows * view.itemsize
    return view if by_rows or by_columns else np.ascontiguousarray(view)


@plain("matmul")
def matmul(
    a: np.ndarray,
    b: np.ndarray,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute: Optional[str] = None,
) -> np.ndarray:
    """a [..., M, K] times b [..., K, N] -> [..., M, N], leading dimensions broadcast.

    With compute="bfloat16" operands are rounded to it, where they do not rest so, and subnormal
    numbers are zero in operands and result, as Intel and AMD define TDPBF16PS and VDPBF16PS.
    """
    a, b = _operand(a, transpose_a), _operand(b, transpose_b)
    if compute is None:
        return np.matmul(a, b)
    return flushed(np.matmul(as_read(a), as_read(b)))


def _is_floating(a: Any, b: Any, compute: Optional[str] = None, **attrs: Any) -> bool:
    if compute is not None:
        return in_bfloat16() is not None
    return str(a.dtype) in ("float32", "float64")


def _scratch(
    a: Any,
    b: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute: Optional[str] = None,
) -> Scratch:
    """Partial sums of a product with a long inner dimension; operands packed in bfloat16."""
    rows, inner = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    columns = b.shape[-2] if transpose_b else b.shape[-1]
    if len(a.shape) > 2 == len(b.shape) and not transpose_a:
        rows *= math.prod(a.shape[:-2])
    packing = None if compute is None else in_bfloat16()
    if packing is None:
        return Scratch(scratch_bytes(rows, inner, columns, a.numpy_dtype.itemsize))
    if len(b.shape) == 2:
        return Scratch(packing.scratch_bytes(rows, inner, columns))
    return Scratch(0, packing.scratch_bytes(rows, inner, columns, 1))


@compiled("matmul", _is_floating, _scratch, reads_bfloat16=True)
def matmul_into(
    a: np.ndarray,
    b: np.ndarray,
    *,
    out: tuple[np.ndarray, ...],
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute: Optional[str] = None,
) -> None:
    """The same into `out`; rows of all leading dimensions as one product where b is a matrix.

    Operands that rest in bfloat16 are its bits, uint16.
    """
    (result,) = out
    if (
        a.ndim > 2 == b.ndim
        and not transpose_a
        and a.flags.c_contiguous
        and result.flags.c_contiguous
    ):
        a = a.reshape(-1, a.shape[-1])
        result = result.reshape(-1, result.shape[-1])
    a, b = _operand(a, transpose_a), _operand(b, transpose_b)
    packing = None if compute is None else in_bfloat16()
    (product if packing is None else packing.product)(a, b, result)
