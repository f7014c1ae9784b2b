"""Plain kernels of decompositions and linear systems: LAPACK's, as NumPy calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cerebras_tf.errors import DataError
from cerebras_tf.kernels.registry import plain


def _checked(name: str, advice: str, function: Callable[..., Any], *operands: np.ndarray) -> Any:
    """Calls a function of numpy.linalg; what it raises becomes an error of ours."""
    try:
        return function(*operands)
    except np.linalg.LinAlgError as error:
        raise DataError(
            f"{name}: {advice}. Received: {error}. Add a small multiple of 1."
        ) from error


@plain("cholesky")
def cholesky(x):
    """Lower triangular L with L L^T = x; reads the lower triangle of x."""
    lower = np.tril(x)
    whole = lower + np.swapaxes(np.tril(x, -1), -1, -2)
    return _checked(
        "cholesky", "matrices must be positive definite", np.linalg.cholesky, whole
    ).astype(x.dtype)


@plain("matrix_inverse")
def matrix_inverse(x):
    """x^-1."""
    return _checked("matrix_inverse", "matrices must be invertible", np.linalg.inv, x)


@plain("slogdet")
def slogdet(x):
    """Sign and logarithm of the absolute determinants."""
    sign, log = np.linalg.slogdet(x)
    return np.asarray(sign, x.dtype), np.asarray(log, x.dtype)


def _solved(name: str, a: np.ndarray, y: np.ndarray, adjoint: bool) -> np.ndarray:
    leading = np.broadcast_shapes(a.shape[:-2], y.shape[:-2])
    matrix = np.broadcast_to(np.swapaxes(a, -1, -2) if adjoint else a, (*leading, *a.shape[-2:]))
    right = np.broadcast_to(y, (*leading, *y.shape[-2:]))
    found = _checked(name, "matrices must be invertible", np.linalg.solve, matrix, right)
    return np.asarray(found)


@plain("matrix_solve")
def matrix_solve(a, y, *, adjoint):
    """x with a x = y, or a^T x = y."""
    return _solved("matrix_solve", a, y, adjoint)


@plain("triangular_solve")
def triangular_solve(a, y, *, lower, adjoint):
    """matrix_solve with one triangle of a."""
    return _solved("triangular_solve", np.tril(a) if lower else np.triu(a), y, adjoint)


@plain("eigh")
def eigh(x):
    """Eigenvalues in rising order and eigenvectors; reads the lower triangle of x."""
    values, vectors = _checked("eigh", "matrices must be finite", np.linalg.eigh, x)
    return values, vectors


@plain("svd")
def svd(x):
    """Singular values in falling order, left and right singular vectors as columns."""

    def reduced(x):
        return np.linalg.svd(x, full_matrices=False)

    u, s, adjoint = _checked("svd", "matrices must be finite", reduced, x)
    return s, u, np.ascontiguousarray(np.swapaxes(adjoint, -1, -2))


@plain("qr")
def qr(x):
    """Orthonormal columns and an upper triangle."""
    q, r = np.linalg.qr(x)
    return q, r
