"""Matrix multiplication on arrays: NumPy's matmul is the definition, BLAS does the work.

Transposed operands are views, which BLAS reads as they lie; nothing is copied for them. Which BLAS
it is, and how products spread over threads, blas.py decides.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cerebras_tf.kernels.blas import product, scratch_bytes
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
    a: np.ndarray, b: np.ndarray, *, transpose_a: bool = False, transpose_b: bool = False
) -> np.ndarray:
    """a [..., M, K] times b [..., K, N] -> [..., M, N], leading dimensions broadcast."""
    return np.matmul(_operand(a, transpose_a), _operand(b, transpose_b))


def _is_floating(a: Any, b: Any, **attrs: Any) -> bool:
    return str(a.dtype) in ("float32", "float64")


def _scratch(a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> Scratch:
    """Partial sums of a product with a long inner dimension."""
    rows, inner = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    columns = b.shape[-2] if transpose_b else b.shape[-1]
    if len(a.shape) > 2 == len(b.shape) and not transpose_a:
        rows *= math.prod(a.shape[:-2])
    return Scratch(scratch_bytes(rows, inner, columns, a.numpy_dtype.itemsize))


@compiled("matmul", _is_floating, _scratch)
def matmul_into(
    a: np.ndarray,
    b: np.ndarray,
    *,
    out: tuple[np.ndarray, ...],
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> None:
    """The same into `out`; rows of all leading dimensions as one product where b is a matrix."""
    (result,) = out
    if (
        a.ndim > 2 == b.ndim
        and not transpose_a
        and a.flags.c_contiguous
        and result.flags.c_contiguous
    ):
        a = a.reshape(-1, a.shape[-1])
        result = result.reshape(-1, result.shape[-1])
    product(_operand(a, transpose_a), _operand(b, transpose_b), result)
