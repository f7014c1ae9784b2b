"""Lowerings of decompositions, inverses, determinants and solutions of linear systems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops.linear_algebra import transposed


@lowers("Cholesky")
def _cholesky(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op("cholesky", *low.inputs(op))]


@lowers("MatrixInverse")
def _inverse(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    return [low.b.op("matrix_inverse", transposed(low.b, x) if op.get_attr("adjoint") else x)]


@lowers("MatrixSolve", "MatrixTriangularSolve", "BatchMatrixTriangularSolve")
def _solve(low: Lowering, op: Operation) -> Sequence[Value]:
    attrs = {"adjoint": bool(op.get_attr("adjoint"))}
    if op.type == "MatrixSolve":
        return [low.b.op("matrix_solve", *low.inputs(op), **attrs)]
    attrs["lower"] = bool(op.get_attr("lower"))
    return [low.b.op("triangular_solve", *low.inputs(op), **attrs)]


@lowers("LogMatrixDeterminant", "MatrixDeterminant")
def _determinant(low: Lowering, op: Operation) -> Sequence[Value]:
    sign, log = low.b.multi("slogdet", *low.inputs(op))
    if op.type == "LogMatrixDeterminant":
        return [sign, log]
    return [low.b.op("mul", sign, low.b.op("exp", log))]


@lowers("SelfAdjointEigV2")
def _eigh(low: Lowering, op: Operation) -> Sequence[Value]:
    return low.b.multi("eigh", *low.inputs(op))


def _require_reduced(op: Operation, x: Value) -> None:
    if op.get_attr("full_matrices") and x.shape[-1] != x.shape[-2]:
        raise UnsupportedOpError(
            f"{op.type}: full_matrices must be False for matrices that are not square. Received: "
            f"{x!r}. Leave it out."
        )


@lowers("Svd")
def _svd(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    if op.get_attr("compute_uv"):
        _require_reduced(op, x)
    return low.b.multi("svd", x)


@lowers("Qr")
def _qr(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    _require_reduced(op, x)
    return low.b.multi("qr", x)


@lowers("MatrixSolveLs")
def _least_squares(low: Lowering, op: Operation) -> Sequence[Value]:
    """Normal equations: (A^T A + l)^-1 A^T y, or A^T (A A^T + l)^-1 y of a wide matrix."""
    b, (a, y) = low.b, low.inputs(op)[:2]
    if not op.get_attr("fast"):
        raise UnsupportedOpError(
            "MatrixSolveLs: fast must be True. Received: False, a complete orthogonal "
            "decomposition, which has no gradient. Call tf.linalg.lstsq with fast=True."
        )
    regularizer = float(low.static(op.inputs[2], "l2_regularizer"))
    rows, columns = a.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedOpError(
            f"MatrixSolveLs: matrices must have a known size. Received: {a!r}. Set the static "
            "shape."
        )
    wide = rows < columns
    gram = b.op("matmul", a, a, transpose_a=not wide, transpose_b=wide)
    shift = b.constant(regularizer * np.eye(min(rows, columns)), a.dtype)
    gram = b.op("add", gram, shift)
    if wide:
        solved = b.op("matrix_solve", gram, y, adjoint=False)
        return [b.op("matmul", a, solved, transpose_a=True, transpose_b=False)]
    right = b.op("matmul", a, y, transpose_a=True, transpose_b=False)
    return [b.op("matrix_solve", gram, right, adjoint=False)]
