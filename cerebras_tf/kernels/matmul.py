"""Matrix multiplication; NumPy's matmul is the definition.

Products run on BLAS (blas.py), or in bfloat16 on the processor's instructions
(compiled_bfloat16.py). Transposed operands are views, which BLAS reads without a copy.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels import blas, compiled_bfloat16, compiled_grouped_gemm
from cerebras_tf.kernels.half_precision import as_bfloat16_operand, flush_subnormals
from cerebras_tf.kernels.registry import Scratch, compiled, plain
from cerebras_tf.ops.matmul import product_pairs


def _operand(array: np.ndarray, transpose: bool) -> np.ndarray:
    """The operand as a view, copied only if BLAS cannot read it in place."""
    view = array.swapaxes(-1, -2) if transpose else array
    (rows, columns), (row_bytes, column_bytes) = view.shape[-2:], view.strides[-2:]
    by_rows = column_bytes == view.itemsize and row_bytes >= columns * view.itemsize
    by_columns = row_bytes == view.itemsize and column_bytes >= rows * view.itemsize
    return view if by_rows or by_columns else np.ascontiguousarray(view)


@plain("matmul")
def matmul(a, b, *, transpose_a=False, transpose_b=False, compute=None):
    """a [..., M, K] times b [..., K, N] -> [..., M, N]; leading dimensions broadcast.

    With compute="bfloat16" operands are rounded to bfloat16 (if not stored in it), and subnormal
    numbers are flushed to zero in operands and result, as Intel and AMD define TDPBF16PS and
    VDPBF16PS.
    """
    a, b = _operand(a, transpose_a), _operand(b, transpose_b)
    if compute is None:
        return np.matmul(a, b)
    return flush_subnormals(np.matmul(as_bfloat16_operand(a), as_bfloat16_operand(b)))


def _is_floating(a: Any, b: Any, compute: Optional[str] = None, **attrs: Any) -> bool:
    return compute is not None or str(a.dtype) in ("float32", "float64")


def _scratch(
    a: Any,
    b: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute: Optional[str] = None,
) -> Scratch:
    """Partial sums of a product with a long inner dimension; packed operands in bfloat16."""
    rows, inner = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    columns = b.shape[-2] if transpose_b else b.shape[-1]
    if len(a.shape) > 2 == len(b.shape) and not transpose_a:
        rows *= math.prod(a.shape[:-2])
    if compute is None:
        return Scratch(blas.scratch_bytes(rows, inner, columns, a.numpy_dtype.itemsize))
    if len(b.shape) == 2:
        return Scratch(compiled_bfloat16.scratch_bytes(rows, inner, columns))
    return Scratch(0, compiled_bfloat16.scratch_bytes(rows, inner, columns, 1))


@compiled("matmul", _is_floating, _scratch, reads_bfloat16=True)
def matmul_into(a, b, *, out, transpose_a=False, transpose_b=False, compute=None):
    """`matmul` into `out`; leading dimensions of a are merged into its rows if b is a matrix.

    Operands stored in bfloat16 are its bits, uint16.
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
    (blas.gemm if compute is None else compiled_bfloat16.gemm)(a, b, result)


@plain("grouped_matmul")
def grouped_matmul(*operands, lefts, summed, **attrs):
    """Products of matrices b and of a, which may have leading dimensions.

    Args:
        operands: the left ones, `lefts` of them, then the right ones; a single one is an operand of
            all products.
        summed: whether to return the products' sum.
        attrs: as of matmul.
    """
    found = [matmul(a, b, **attrs) for a, b in product_pairs(operands, lefts)]
    return functools.reduce(np.add, found) if summed else tuple(found)


def _group_scratch(
    *operands: Any,
    lefts: int,
    summed: bool,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute: Optional[str] = None,
) -> Scratch:
    shapes = []
    for a, b in product_pairs(operands, lefts):
        rows, inner = math.prod(a.shape[:-1]), a.shape[-1]
        rows, inner = (inner, rows) if transpose_a else (rows, inner)
        shapes.append((rows, inner, b.shape[-2 if transpose_b else -1]))
    shares_right = lefts > len(operands) - lefts
    return Scratch(compiled_grouped_gemm.scratch_bytes(shapes, shares_right))


def _is_rounded(*operands: Any, compute: Optional[str] = None, **attrs: Any) -> bool:
    return compute is not None


@compiled("grouped_matmul", _is_rounded, _group_scratch, reads_bfloat16=True)
def grouped_matmul_into(
    *operands, out, lefts, summed, transpose_a=False, transpose_b=False, compute
):
    """`grouped_matmul` into `out`."""
    left = [_operand(a.reshape(-1, a.shape[-1]), transpose_a) for a in operands[:lefts]]
    right = [_operand(b, transpose_b) for b in operands[lefts:]]
    pairs = product_pairs([*left, *right], lefts)
    results = [c.reshape(-1, c.shape[-1]) for c in out] * (len(pairs) if summed else 1)
    compiled_grouped_gemm.gemm_group([(a, b, c) for (a, b), c in zip(pairs, results)])
