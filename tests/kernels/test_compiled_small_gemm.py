"""Small products within compiled code, against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels.compiled_register_blocks import LANES, TURNED
from cerebras_tf.kernels.compiled_small_gemm import small_product
from cerebras_tf.kernels.instruction_set import features
from tests.tolerances import TOLERANCES

RELATIVE, ABSOLUTE = TOLERANCES["matmul"]
needs_vectors = pytest.mark.skipif(
    features().isdisjoint({"avx512f", "fma"}), reason="needs AVX-512, or AVX2 with FMA"
)


def matrix(rows, columns, turned=False, seed=0):
    """Numbers within a larger array, whose rows, or columns if turned, are contiguous."""
    shape = (columns, 3, rows) if turned else (rows, 3, columns)
    whole = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return whole[:, 1].T if turned else whole[:, 1]


def multiply(a, b):
    """The product, and whether it was made; numbers around it must stay."""
    around = np.full((len(a), 3, b.shape[1]), 7.0, np.float32)
    made = small_product(a, b, around[:, 1])
    assert (around[:, [0, 2]] == 7).all()
    if not made:
        assert (around == 7).all()
    return around[:, 1], made


@needs_vectors
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [16, 17, 31, 32, 50, 64, 80, 100, 128, 130])
@pytest.mark.parametrize("inner", [1, 5, 16, 33])
@pytest.mark.parametrize("rows", [4, 5, 7, 8, 21])
def test_rows_of_the_second_operand(rows, inner, columns, turned):
    a, b = matrix(rows, inner, turned), matrix(inner, columns, seed=1)
    out, made = multiply(a, b)
    assert made
    np.testing.assert_allclose(out, a.astype(float) @ b, rtol=RELATIVE, atol=ABSOLUTE)


@needs_vectors
@pytest.mark.parametrize("inner", [16, 64, 80])
@pytest.mark.parametrize("rows, columns", [(4, 4), (4, 7), (5, 8), (9, 9), (7, 12)])
def test_dot_products(rows, inner, columns):
    a, b = matrix(rows, inner), matrix(inner, columns, turned=True, seed=1)
    out, made = multiply(a, b)
    assert made
    np.testing.assert_allclose(out, a.astype(float) @ b, rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.parametrize(
    "a, b",
    [
        (matrix(3, 16), matrix(16, 64)),
        (matrix(8, 16), matrix(16, LANES - 1)),
        (matrix(8, LANES + 4), matrix(LANES + 4, 8, turned=True)),
        (matrix(8, 16, turned=True), matrix(16, 8, turned=True)),
        (matrix(8, 16), matrix(16, TURNED - 1, turned=True)),
        (matrix(40, 64), matrix(64, 40, turned=True)),
        (matrix(80, 80), matrix(80, 64)),
        (matrix(8, 0), matrix(0, 16)),
    ],
    ids=["rows", "columns", "inner", "turned", "few", "many dots", "large", "no inner"],
)
def test_others_are_left_to_blas(a, b):
    assert not multiply(a, b)[1]


@needs_vectors
def test_numbers_that_are_not_finite_pass():
    a, b = matrix(6, 16), matrix(16, 20)
    a[2, 3], b[5, 7] = np.inf, np.nan
    out, _ = multiply(a, b)
    expected = a.astype(float) @ b
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(expected))
