"""Decompositions of matrices and solutions of linear systems, over the last two axes.

Gradients of decompositions are those of Giles, "Collected matrix derivative results for forward and
reverse mode algorithmic differentiation", 2008, and, of QR, of Walter and Lehmann, "Algorithmic
differentiation of linear algebra functions with application in optimum experimental design", 2010.

Letters: M rows, N columns, K = min(M, N); ... leading dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, of_one_output, sum_to
from cerebras_tf.ops.inference import broadcast_shapes, require_same_dtype
from cerebras_tf.ops.registry import Attrs, Types, register
from cerebras_tf.ops.shape import reshape


def transposed(b: Builder, x: Value) -> Value:
    """Emits the transposes of the matrices."""
    rank = x.type.rank
    return b.op("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def _product(b: Builder, x: Value, y: Value, turn_x: bool = False, turn_y: bool = False) -> Value:
    return b.op("matmul", x, y, transpose_a=turn_x, transpose_b=turn_y)


def _square_size(name: str, x: Value) -> int:
    size = x.shape[-1] if x.type.rank >= 2 else None
    if not isinstance(size, int) or x.shape[-2] != size:
        raise GraphError(
            f"{name}: matrices must be square and of a known size. Received: {x!r}. Set the static "
            "shape."
        )
    return size


def _number(dim: Optional[Size]) -> int:
    return dim if isinstance(dim, int) else 0


def _eye(b: Builder, size: int, dtype: str) -> Value:
    return b.constant(np.eye(size), dtype)


def _triangle(b: Builder, x: Value, lower: bool, diagonal: float = 1.0) -> Value:
    """One triangle of square matrices, with the diagonal times a number."""
    size = _square_size("triangle", x)
    mask = np.tril(np.ones((size, size))) if lower else np.triu(np.ones((size, size)))
    mask[np.arange(size), np.arange(size)] = diagonal
    inside = b.constant(mask != 0)
    kept = b.op("select", inside, x, b.constant(0.0, x.dtype))
    return b.op("mul", kept, b.constant(mask, x.dtype)) if diagonal not in (0.0, 1.0) else kept


def _square_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """cholesky(x [..., N, N]) or matrix_inverse(x): [..., N, N]"""
    _square_size("linear algebra", inputs[0])
    return [inputs[0].type]


@of_one_output
def _cholesky_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """Half of S + S^T, S = L^-T P(L^T dL) L^-1; P is the lower triangle, half of its diagonal."""
    factor = node.output
    inverse = b.op("matrix_inverse", factor)
    middle = _triangle(b, _product(b, factor, dy, turn_x=True), lower=True, diagonal=0.5)
    found = _product(b, _product(b, inverse, middle, turn_x=True), inverse)
    return [b.op("mul", b.op("add", found, transposed(b, found)), 0.5)]


@of_one_output
def _inverse_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """-X^-T dY X^-T"""
    y = node.output
    product = _product(b, _product(b, y, dy, turn_x=True), y, turn_y=True)
    return [b.op("neg", product)]


def _slogdet_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """slogdet(x [..., N, N]) -> sign and logarithm of the absolute determinants [...]"""
    _square_size("slogdet", inputs[0])
    kind = inputs[0].type.with_shape(inputs[0].shape[:-2])
    return [kind, kind]


def _slogdet_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    """dlog X^-T"""
    (x,), dlog = node.inputs, dys[1]
    if dlog is None:
        return [None]
    spread = reshape(b, dlog, (*x.shape[:-2], 1, 1))
    return [b.op("mul", spread, transposed(b, b.op("matrix_inverse", x)))]


def _solve_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """matrix_solve(a [..., M, M], y [..., M, N]; adjoint) -> x with a x = y, or a^T x = y.

    triangular_solve also has lower: which triangle of a is read.
    """
    require_same_dtype(inputs)
    a, y = inputs
    _square_size("solve", a)
    leading = broadcast_shapes([a.shape[:-2], y.shape[:-2]])
    return [TensorType(y.dtype, (*leading, *y.shape[-2:]))]


@of_one_output
def _solve_vjp(b: Builder, node: Node, dx: Value) -> Cotangents:
    """dy = a^-T dx, da = -dy x^T; of the triangle that is read."""
    a, y = node.inputs
    x, adjoint = node.output, bool(node.attrs["adjoint"])
    dy = b.op(node.op, a, dx, **dict(node.attrs, adjoint=not adjoint))
    da = b.op("neg", _product(b, *((x, dy) if adjoint else (dy, x)), turn_y=True))
    if node.op == "triangular_solve":
        da = _triangle(b, da, bool(node.attrs["lower"]))
    return [sum_to(b, da, a), sum_to(b, dy, y)]


def _eigh_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """eigh(x [..., N, N]) -> eigenvalues [..., N] in rising order, eigenvectors as columns.

    Only the lower triangle of x is read.
    """
    x = inputs[0]
    _square_size("eigh", x)
    return [x.type.with_shape(x.shape[:-1]), x.type]


def _rows_of(b: Builder, vector: Value) -> Value:
    """[..., 1, N]"""
    return reshape(b, vector, (*vector.shape[:-1], 1, vector.shape[-1]))


def _columns_of(b: Builder, vector: Value) -> Value:
    """[..., N, 1]"""
    return reshape(b, vector, (*vector.shape, 1))


def _eigh_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    """V (diag(dw) + F * V^T dV) V^T with F = 1 / (w_j - w_i), 0 on the diagonal."""
    (x,), (values, vectors), (dvalues, dvectors) = node.inputs, node.outputs, dys
    size = _square_size("eigh", x)
    middle: Optional[Value] = None
    if dvalues is not None:
        middle = b.op("mul", _eye(b, size, x.dtype), _rows_of(b, dvalues))
    if dvectors is not None:
        gaps = b.op("sub", _rows_of(b, values), _columns_of(b, values))
        inverse = b.op("div_no_nan", b.constant(1.0, x.dtype), gaps)
        part = b.op("mul", inverse, _product(b, vectors, dvectors, turn_x=True))
        middle = part if middle is None else b.op("add", middle, part)
    if middle is None:
        return [None]
    dx = _product(b, _product(b, vectors, middle), vectors, turn_y=True)
    whole = b.op("add", dx, transposed(b, dx))
    return [_triangle(b, whole, lower=True, diagonal=0.5)]


def _svd_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """svd(x [..., M, N]) -> s [..., K] in falling order, u [..., M, K], v [..., N, K]"""
    x = inputs[0]
    *leading, m, n = x.shape
    if not isinstance(m, int) or not isinstance(n, int):
        raise GraphError(
            f"svd: matrices must have a known size. Received: {x!r}. Set the static shape."
        )
    k = min(m, n)
    shapes: list[tuple[Optional[Size], ...]] = [(*leading, k), (*leading, m, k), (*leading, n, k)]
    return [x.type.with_shape(shape) for shape in shapes]


def _svd_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    """U (diag(ds) + S-terms of U^T dU and V^T dV) V^T, and the parts outside of both spaces.

    With F = 1 / (s_j^2 - s_i^2) and skew(A) = F * (A - A^T): U (skew(U^T dU) S + S skew(V^T dV))
    V^T + (1 - U U^T) dU S^-1 V^T + U S^-1 dV^T (1 - V V^T).
    """
    (s, u, v), (ds, du, dv) = node.outputs, dys
    dtype, k = s.dtype, _number(s.shape[-1])
    middle: Optional[Value] = None
    if ds is not None:
        middle = b.op("mul", _eye(b, k, dtype), _rows_of(b, ds))
    squares = b.op("square", s)
    gaps = b.op("sub", _rows_of(b, squares), _columns_of(b, squares))
    inverse = b.op("div_no_nan", b.constant(1.0, dtype), gaps)
    outside: list[Value] = []
    one_over_s = b.op("div_no_nan", b.constant(1.0, dtype), s)

    def skew(side: Value, cotangent: Value) -> Value:
        found = _product(b, side, cotangent, turn_x=True)
        return b.op("mul", inverse, b.op("sub", found, transposed(b, found)))

    def beyond(side: Value, cotangent: Value) -> Value:
        """(1 - side side^T) cotangent / s"""
        inside = _product(b, side, _product(b, side, cotangent, turn_x=True))
        return b.op("mul", b.op("sub", cotangent, inside), _rows_of(b, one_over_s))

    if du is not None:
        part = b.op("mul", skew(u, du), _rows_of(b, s))
        middle = part if middle is None else b.op("add", middle, part)
        outside.append(_product(b, beyond(u, du), v, turn_y=True))
    if dv is not None:
        part = b.op("mul", _columns_of(b, s), skew(v, dv))
        middle = part if middle is None else b.op("add", middle, part)
        outside.append(_product(b, u, beyond(v, dv), turn_y=True))
    if middle is None:
        return [None]
    total = _product(b, _product(b, u, middle), v, turn_y=True)
    for part in outside:
        total = b.op("add", total, part)
    return [total]


def _qr_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """qr(x [..., M, N]) -> q [..., M, K], orthonormal columns; r [..., K, N], upper triangular"""
    s, u, _ = _svd_infer(inputs, attrs)
    k = s.shape[-1]
    return [u, inputs[0].type.with_shape((*inputs[0].shape[:-2], k, inputs[0].shape[-1]))]


def _qr_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    """(dQ + Q C) R^-T with C = symmetric completion of the lower triangle of R dR^T - dQ^T Q."""
    (q, r), (dq, dr) = node.outputs, dys
    if r.shape[-1] != r.shape[-2]:
        raise UnsupportedOpError(
            f"gradient of qr: matrices must not have more columns than rows. Received: {node!r}. "
            "Transpose them, or stop the gradient."
        )
    m: Optional[Value] = None
    if dr is not None:
        m = _product(b, r, dr, turn_y=True)
    if dq is not None:
        part = b.op("neg", _product(b, dq, q, turn_x=True))
        m = part if m is None else b.op("add", m, part)
    if m is None:
        return [None]
    lower = _triangle(b, m, lower=True, diagonal=0.0)
    size = _square_size("qr", m)
    diagonal = b.op("mul", m, _eye(b, size, m.dtype))
    symmetric = b.op("add", b.op("add", lower, transposed(b, lower)), diagonal)
    total = _product(b, q, symmetric)
    if dq is not None:
        total = b.op("add", total, dq)
    # total R^-T = (R^-1 total^T)^T
    solved = b.op("triangular_solve", r, transposed(b, total), lower=False, adjoint=False)
    return [transposed(b, solved)]


def _flops(factor: float) -> object:
    """factor K^2 max(M, N) for each matrix; K^3 of a square one."""

    def flops(node: Node) -> Size:
        x = node.inputs[0]
        size = x.type.size
        k = min(map(_number, x.shape[-2:]))
        return size * int(factor * k)

    return flops


for _name, _infer, _vjp, _factor in (
    ("cholesky", _square_infer, _cholesky_vjp, 1 / 3),
    ("matrix_inverse", _square_infer, _inverse_vjp, 2),
    ("slogdet", _slogdet_infer, _slogdet_vjp, 2 / 3),
    ("matrix_solve", _solve_infer, _solve_vjp, 2 / 3),
    ("triangular_solve", _solve_infer, _solve_vjp, 1),
    ("eigh", _eigh_infer, _eigh_vjp, 9),
    ("svd", _svd_infer, _svd_vjp, 14),
    ("qr", _qr_infer, _qr_vjp, 4),
):
    register(
        _name,
        _infer,
        _vjp,
        rows=rows.across,
        flops=_flops(_factor),  # type: ignore[arg-type]
    )
