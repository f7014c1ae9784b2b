"""Products by AVX-512 equal NumPy's for all layouts and sizes, whatever blocks and threads are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cerebras_tf.kernels import blas, compiled_avx512_gemm, compiled_threads
from cerebras_tf.kernels.instruction_set import features
from cerebras_tf.kernels.scratch import peak_bytes, reset_peak

RANDOM = np.random.default_rng(11)

pytestmark = pytest.mark.skipif("avx512f" not in features(), reason="no AVX-512 here")


@pytest.fixture
def by_vectors(monkeypatch):
    """Products of any size by vectors."""
    monkeypatch.setattr(blas, "_uses_avx512", lambda: True)
    monkeypatch.setattr(blas, "_is_avx512_product", lambda rows, columns: True)
    monkeypatch.setattr(blas, "_MIN_PARALLEL_WORK", 1)


def lying(rows, columns, turned, more):
    """A matrix by rows or columns, a part of one with `more` columns or rows."""
    if turned:
        return RANDOM.standard_normal((columns, rows + more), np.float32)[:, :rows].T
    return RANDOM.standard_normal((rows, columns + more), np.float32)[:, :columns]


@pytest.mark.parametrize(
    "shape",
    [(12, 16, 32), (3, 2, 2), (24, 32, 64), (25, 33, 65), (13, 400, 40), (100, 1000, 700)]
    + [(37, 769, 2), (300, 385, 31), (40, 5, 3000), (16, 600, 16)],
)
@pytest.mark.parametrize("more", [0, 3])
def test_products_equal_numpy_and_write_only_their_result(by_vectors, shape, more):
    rows, inner, columns = shape
    for first, second, add in itertools.product((False, True), (False, True), (False, True)):
        a, b = lying(rows, inner, first, more), lying(inner, columns, second, more)
        whole = RANDOM.standard_normal((rows, columns + more), np.float32)
        before, out = whole.copy(), whole[:, :columns]
        expected = out.astype("f8") * add + a.astype("f8") @ b
        blas.gemm(a, b, out, add=add)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5 * inner**0.5)
        np.testing.assert_array_equal(whole[:, columns:], before[:, columns:])


def test_column_major_results_equal_row_major_ones(by_vectors):
    a, b = lying(30, 50, False, 0), lying(50, 70, True, 0)
    row_major, column_major = np.empty((30, 70), "f"), np.empty((70, 30), "f").T
    blas.gemm(a, b, row_major)
    blas.gemm(a, b, column_major)
    np.testing.assert_allclose(column_major, row_major, rtol=1e-5, atol=1e-5)


def test_bits_depend_on_neither_blocks_nor_threads(by_vectors, monkeypatch):
    a, b = lying(700, 500, False, 0), lying(500, 130, False, 0)
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(threads))
        found.append(np.empty((700, 130), "f"))
        blas.gemm(a, b, found[-1])
    alone = np.empty((100, 90), "f")
    blas.gemm(a[301:401], b[:, 37:127], alone)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0][301:401, 37:127], alone)


def test_rows_that_meet_in_l1_are_copied_to_the_same_bits(by_vectors):
    together, apart = np.zeros((30, 1024), "f"), np.zeros((30, 1000), "f")
    a, b = lying(30, 405, False, 0), lying(405, 70, False, 0)
    found = []
    for whole in (together, apart):
        whole[:, :405] = a
        found.append(np.empty((30, 70), "f"))
        blas.gemm(whole[:, :405], b, found[-1])
    assert together.strides[0] % compiled_avx512_gemm._SET_BYTES == 0
    assert apart.strides[0] % compiled_avx512_gemm._SET_BYTES
    np.testing.assert_array_equal(*found)


def test_what_is_not_a_number_stays_where_it_is(by_vectors):
    a, b = np.ones((14, 20), "f"), np.ones((20, 33), "f")
    a[13, 3] = np.nan
    b[2, 32] = np.inf
    out = np.empty((14, 33), "f")
    blas.gemm(a, b, out)
    assert np.isnan(out[13]).all() and np.isposinf(out[:13, 32]).all()
    assert (out[:13, :32] == 20).all()


@pytest.mark.parametrize("shape", [(600, 300, 64), (64, 300, 600), (40, 2000, 48), (20, 900, 130)])
def test_scratch_memory_is_at_most_scratch_bytes(by_vectors, shape):
    rows, inner, columns = shape
    a, b = lying(rows, inner, False, 0), lying(inner, columns, False, 0)
    reset_peak()
    before = peak_bytes()
    blas.gemm(a, b, np.empty((rows, columns), "f"))
    assert 0 < peak_bytes() - before <= blas.scratch_bytes(*shape, 4)
