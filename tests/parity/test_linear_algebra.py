"""Parity of decompositions and linear systems with TensorFlow, in float64.

Signs of singular vectors and eigenvectors are free, so losses of theirs do not depend on them.
"""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, normal

pytestmark = pytest.mark.tf


def matrices(*shape):
    return normal(*shape).astype(np.float64)


def definite(x):
    """Symmetric positive definite matrices."""
    return tf.matmul(x, x, transpose_b=True) + 0.5 * tf.eye(x.shape[-1], dtype=x.dtype)


def projected(vectors, count):
    """The projection onto the first vectors, and their squares."""
    kept = vectors[..., :count]
    return [tf.matmul(kept, kept, transpose_b=True), tf.square(vectors)]


def least_squares(x):
    return tf.linalg.lstsq(x[0], x[1], l2_regularizer=0.1)


SQUARE, WIDE, TALL = matrices(2, 4, 4), matrices(2, 3, 5), matrices(2, 5, 3)
RIGHT = matrices(2, 4, 3)
ROWS = [
    ("cholesky", lambda x: tf.linalg.cholesky(definite(x[0])), [SQUARE]),
    ("inverse", lambda x: [tf.linalg.inv(x[0]), tf.linalg.inv(x[0], adjoint=True)], [SQUARE]),
    ("determinant", lambda x: [tf.linalg.det(x[0]), *tf.linalg.slogdet(x[0])], [SQUARE]),
    *(
        (f"solve-{adjoint}", lambda x, adjoint=adjoint: tf.linalg.solve(*x, adjoint), None)
        for adjoint in (False, True)
    ),
    *(
        (
            f"triangular-{lower}-{adjoint}",
            lambda x, options=(lower, adjoint): tf.linalg.triangular_solve(*x, *options),
            None,
        )
        for lower in (False, True)
        for adjoint in (False, True)
    ),
    ("shared", lambda x: tf.linalg.triangular_solve(x[0][0], x[1]), None),
    ("values", lambda x: tf.linalg.eigvalsh(definite(x[0])), [SQUARE]),
    ("vectors", lambda x: projected(tf.linalg.eigh(definite(x[0]))[1], 2), [SQUARE]),
    ("singular values", lambda x: tf.linalg.svd(x[0], compute_uv=False), [WIDE]),
    ("left", lambda x: projected(tf.linalg.svd(x[0])[1], 2), [TALL]),
    ("right", lambda x: projected(tf.linalg.svd(x[0])[2], 2), [WIDE]),
    ("qr", lambda x: list(tf.linalg.qr(x[0])), [TALL]),
    ("square qr", lambda x: list(tf.linalg.qr(x[0])), [SQUARE]),
    ("tall least squares", least_squares, [TALL, matrices(2, 5, 2)]),
    ("wide least squares", least_squares, [WIDE, matrices(2, 3, 2)]),
]


@pytest.mark.parametrize(("name", "build", "inputs"), ROWS, ids=[row[0] for row in ROWS])
def test_linear_algebra_agrees_with_tensorflow(name, build, inputs):
    given = inputs or [SQUARE + 3 * np.eye(4), RIGHT]
    check_parity(build, given, "float64")


def test_a_matrix_that_is_not_positive_definite_is_an_error_of_the_data():
    from cerebras_tf.errors import DataError
    from cerebras_tf.kernels.registry import evaluate

    with pytest.raises(DataError, match="cholesky: matrices must be positive definite"):
        evaluate("cholesky", [-np.eye(2)], {})
