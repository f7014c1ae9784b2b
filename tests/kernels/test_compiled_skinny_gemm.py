"""Checks products of a few rows with a large matrix against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels import blas, compiled_skinny_gemm, compiled_threads

SHAPES = [(2, 3, 5), (3, 8, 257), (4, 300, 256), (5, 257, 700), (7, 64, 9), (8, 1, 33)]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def calls(monkeypatch):
    """Notes of products that are taken; all that can be are, on every processor."""
    found = []
    original = blas.thin_product
    monkeypatch.setattr(compiled_skinny_gemm, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(compiled_skinny_gemm, "TAKES_ROWS", True)
    monkeypatch.setattr(blas, "thin_product", lambda *a: found.append(a) or original(*a))
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
    blas.product(a, b, out, add)
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
    original = blas.vector_products
    monkeypatch.setattr(blas, "vector_products", lambda *a: taken.append(a) or original(*a))
    a = rng.standard_normal((*lead, 1, inner)).astype(np.float32)
    b = rng.standard_normal((*lead, *((columns, inner) if transposed else (inner, columns))))
    b = b.astype(np.float32).swapaxes(-1, -2) if transposed else b.astype(np.float32)
    out = rng.standard_normal((*lead, 1, columns)).astype(np.float32)
    expected = a.astype(float) @ b + (out if add else 0)
    blas.product(a, b, out, add)
    assert len(taken) == 1
    np.testing.assert_allclose(out, expected, atol=2e-5)


def test_a_transposed_left_side_is_read_as_it_is(rng, calls):
    a, b = rng.standard_normal((9, 4)).astype("f"), rng.standard_normal((9, 6)).astype("f")
    out = np.empty((4, 6), np.float32)
    blas.product(a.T, b, out)
    assert len(calls) == 1
    np.testing.assert_allclose(out, a.T.astype(float) @ b, atol=1e-5)


def test_nan_and_infinity_propagate(rng, calls):
    b = np.ones((6, 4), np.float32)
    b[1, 2], b[2, 3] = np.nan, np.inf
    for matrix in (b, np.ascontiguousarray(b.T).T):
        out = np.empty((2, 4), np.float32)
        blas.product(np.ones((2, 6), np.float32), matrix, out)
        assert np.isnan(out[:, 2]).all() and np.isinf(out[:, 3]).all() and (out[:, :2] == 6).all()
    assert len(calls) == 2


@pytest.mark.parametrize("rows", [1, 9])
def test_other_products_go_to_blas(rows, rng, calls):
    a, b = rng.standard_normal((rows, 5)).astype("f"), rng.standard_normal((5, 7)).astype("f")
    out, double = np.empty((rows, 7), np.float32), np.empty((4, 7))
    blas.product(a, b, out)
    blas.product(np.ones((4, 5)), b.astype(float), double)
    wide = np.empty((4, 14), np.float32)[:, ::2]
    blas.product(a[:4] if rows > 4 else np.ones((4, 5), np.float32), b, wide)
    assert not calls
