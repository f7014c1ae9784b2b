"""Products that are too small or too skinny for BLAS, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels import blas, compiled_threads, compiled_unpacked_gemm
from cerebras_tf.kernels.compiled_unpacked_gemm import DOT_COLUMNS, LANES, small_gemm
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
    made = small_gemm(a, b, around[:, 1])
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
        (matrix(8, 16), matrix(16, DOT_COLUMNS - 1, turned=True)),
        (matrix(40, 64), matrix(64, 40, turned=True)),
        (matrix(80, 80), matrix(80, 64)),
        (matrix(8, 0), matrix(0, 16)),
    ],
    ids=["rows", "columns", "inner", "turned", "few", "many dots", "large", "no inner"],
)
def test_others_are_left_to_blas(a, b):
    assert not multiply(a, b)[1]


@needs_vectors
@pytest.mark.parametrize(
    "a, b", [(matrix(6, 16), matrix(16, 20)), (matrix(5, 16), matrix(16, 8, True))]
)
def test_small_products_propagate_nan_and_infinity(a, b):
    a, b = a.copy("K"), b.copy("K")
    a[2, 3], b[5, 7] = np.inf, np.nan
    out, made = multiply(a, b)
    expected = a.astype(float) @ b
    assert made
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(expected))


SHAPES = [(2, 3, 5), (3, 8, 257), (4, 300, 256), (5, 257, 700), (7, 64, 9), (8, 1, 33)]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def calls(monkeypatch):
    """Notes of products that are taken; all that can be are, on every processor."""
    found = []
    original = blas.skinny_gemm
    monkeypatch.setattr(compiled_unpacked_gemm, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(compiled_unpacked_gemm, "READS_ROW_MAJOR", True)
    monkeypatch.setattr(blas, "skinny_gemm", lambda *a: found.append(a) or original(*a))
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_products_are_numpys(shape, transposed, add, rng, calls):
    rows, inner, columns = shape
    a = rng.standard_normal((rows, inner)).astype(np.float32)
    b = rng.standard_normal((columns, inner) if transposed else (inner, columns)).astype("f")
    b = b.T if transposed else b
    out = rng.standard_normal((rows, columns)).astype(np.float32)
    expected = a.astype(float) @ b + (out if add else 0)
    blas.gemm(a, b, out, add)
    assert len(calls) == 1
    scale = np.abs(a).astype(float) @ np.abs(b) + 1
    assert np.abs(out - expected).max() <= 4e-7 * scale.max()


@pytest.mark.parametrize("shape", [((3, 2), 20, 9), ((2,), 1, 5), ((5,), 7, 1), ((40,), 64, 70)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_products_of_many_vectors_are_numpys(shape, transposed, add, rng, monkeypatch):
    lead, inner, columns = shape
    taken = []
    monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(2))
    original = blas.batched_gemv
    monkeypatch.setattr(blas, "batched_gemv", lambda *a: taken.append(a) or original(*a))
    a = rng.standard_normal((*lead, 1, inner)).astype(np.float32)
    b = rng.standard_normal((*lead, *((columns, inner) if transposed else (inner, columns))))
    b = b.astype(np.float32).swapaxes(-1, -2) if transposed else b.astype(np.float32)
    out = rng.standard_normal((*lead, 1, columns)).astype(np.float32)
    expected = a.astype(float) @ b + (out if add else 0)
    blas.gemm(a, b, out, add)
    assert len(taken) == 1
    np.testing.assert_allclose(out, expected, atol=2e-5)


def test_a_transposed_left_side_is_read_as_it_is(rng, calls):
    a, b = rng.standard_normal((9, 4)).astype("f"), rng.standard_normal((9, 6)).astype("f")
    out = np.empty((4, 6), np.float32)
    blas.gemm(a.T, b, out)
    assert len(calls) == 1
    np.testing.assert_allclose(out, a.T.astype(float) @ b, atol=1e-5)


def test_nan_and_infinity_propagate(rng, calls):
    b = np.ones((6, 4), np.float32)
    b[1, 2], b[2, 3] = np.nan, np.inf
    for matrix in (b, np.ascontiguousarray(b.T).T):
        out = np.empty((2, 4), np.float32)
        blas.gemm(np.ones((2, 6), np.float32), matrix, out)
        assert np.isnan(out[:, 2]).all() and np.isinf(out[:, 3]).all() and (out[:, :2] == 6).all()
    assert len(calls) == 2


@pytest.mark.parametrize("rows", [1, 9])
def test_other_products_go_to_blas(rows, rng, calls):
    a, b = rng.standard_normal((rows, 5)).astype("f"), rng.standard_normal((5, 7)).astype("f")
    out, double = np.empty((rows, 7), np.float32), np.empty((4, 7))
    blas.gemm(a, b, out)
    blas.gemm(np.ones((4, 5)), b.astype(float), double)
    wide = np.empty((4, 14), np.float32)[:, ::2]
    blas.gemm(a[:4] if rows > 4 else np.ones((4, 5), np.float32), b, wide)
    assert not calls
