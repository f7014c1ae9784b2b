"""GEMM equals NumPy's matmul for every layout, split and addition; sgemm in compiled code."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import blas, compiled_blas, compiled_threads
from cerebras_tf.kernels.compiled_blas import sgemm
from cerebras_tf.runtime.cpu import CpuBackend

RANDOM = np.random.default_rng(7)


@pytest.fixture(params=["own library", "NumPy's"])
def library(request, monkeypatch):
    if request.param == "NumPy's":
        monkeypatch.setattr(blas, "_LIBRARY", None)
    elif blas._LIBRARY is None:
        pytest.skip("scipy-openblas32 is not installed")


@pytest.fixture
def small_parts(monkeypatch):
    """Splits even small products over two threads."""
    monkeypatch.setattr(blas, "_MIN_PARALLEL_WORK", 1)
    monkeypatch.setattr(blas, "_MIN_PARALLEL_GEMV_WORK", 1)
    monkeypatch.setattr(blas, "_MIN_CHUNK", 2)
    monkeypatch.setattr(blas, "_LARGE_CHUNK", 4)
    monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(2))


def normal(*shape, dtype="float32"):
    return RANDOM.standard_normal(shape).astype(dtype)


def laid_out(rows, columns, layout, dtype):
    """A matrix as rows, as columns, as a part of a wider one, or with gaps between elements."""
    if layout == "rows":
        return normal(rows, columns, dtype=dtype)
    if layout == "columns":
        return normal(columns, rows, dtype=dtype).T
    if layout == "part":
        return normal(rows + 1, columns + 3, dtype=dtype)[1:, 2 : columns + 2]
    return normal(rows, 2 * columns, dtype=dtype)[:, ::2]


LAYOUTS = ("rows", "columns", "part", "gaps")


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [(5, 7, 3), (9, 4, 6), (3, 5, 11), (2, 64, 3), (1, 1, 1), (4, 1, 5)]
    + [(1, 6, 9), (9, 6, 1), (1, 64, 2), (2, 64, 1)],
)
def test_a_product_equals_numpys(library, small_parts, shape, first, second, add):
    rows, inner, columns = shape
    for dtype, result in itertools.product(("float32", "float64"), ("part", "columns", "gaps")):
        a, b = laid_out(rows, inner, first, dtype), laid_out(inner, columns, second, dtype)
        out = laid_out(rows, columns, result, dtype)
        expected = out * add + a @ b
        blas.gemm(a, b, out, add=add)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3, 4), (4, 0, 3), (4, 3, 0)])
def test_empty_products(library, shape):
    rows, inner, columns = shape
    out = normal(rows, columns)
    blas.gemm(normal(rows, inner), normal(inner, columns), out)
    assert (out == 0).all()


@pytest.mark.parametrize("lead", [(3,), (2, 5), (1, 1)])
def test_leading_dimensions_are_products_of_their_own(library, small_parts, lead):
    a, b = normal(*lead, 4, 6), normal(*lead[-1:], 6, 5)
    out = np.empty((*lead, 4, 5), "f")
    blas.gemm(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inner", [1, 5])
def test_a_vector_may_repeat_one_element_or_run_backwards(library, inner):
    matrix = normal(inner, 4)
    for vector in (np.broadcast_to(normal(1), (inner,)), normal(inner)[::-1]):
        for a, b in ((vector[None], matrix), (matrix.T, vector[:, None])):
            out = np.empty((a.shape[0], b.shape[1]), "f")
            blas.gemm(a, b, out)
            np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


def test_other_dtypes_go_to_numpy(library):
    a, b = np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4)
    out = np.empty((2, 4), a.dtype)
    blas.gemm(a, b, out)
    np.testing.assert_array_equal(out, a @ b)


def test_the_environment_is_left_as_it_was(monkeypatch):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(blas, "_is_zen", lambda: True)
    with blas._core_type_set():
        assert os.environ["OPENBLAS_CORETYPE"] == "Zen"
    assert "OPENBLAS_CORETYPE" not in os.environ


def test_a_core_type_set_by_the_user_is_respected(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SkylakeX")
    monkeypatch.setattr(blas, "_is_zen", lambda: True)
    with blas._core_type_set():
        assert os.environ["OPENBLAS_CORETYPE"] == "SkylakeX"


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "chunks"),
    [(256, 1373, 128, 2), (128, 800, 256, 2), (128, 800, 128, 2), (128, 400, 128, 1)],
)
def test_a_deep_product_of_few_rows_is_shared_where_it_pays(
    rows, inner, columns, chunks, monkeypatch
):
    if blas._LIBRARY is None:
        pytest.skip("scipy-openblas32 is not installed")
    taken = []

    def spread(kernel, rows, chunks, *args, **options):
        taken.append(chunks)
        compiled_threads.parallel_chunks(kernel, rows, chunks, *args, **options)

    monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(2))
    monkeypatch.setattr(blas, "parallel_chunks", spread)
    monkeypatch.setattr(compiled_blas, "parallel_chunks", spread)
    a, b = normal(inner, rows).T, normal(inner, columns)
    out, whole = (np.empty((rows, columns), "f") for _ in range(2))
    blas.gemm(a, b, out)
    blas.serial_gemm(a, b, whole)
    np.testing.assert_allclose(out, whole, rtol=1e-6, atol=1e-4)
    assert max(taken, default=1) == chunks


def test_what_multiplies_is_chosen_by_name(monkeypatch):
    for named, by_vectors in (("blas", False), ("avx512", True)):
        monkeypatch.setenv(blas.VARIABLE, named)
        monkeypatch.setattr(blas, "features", lambda: {"avx512f"})
        assert blas._uses_avx512.__wrapped__() is by_vectors
    for named, features in (("fast", {"avx512f"}), ("avx512", set())):
        monkeypatch.setenv(blas.VARIABLE, named)
        monkeypatch.setattr(blas, "features", lambda features=features: features)
        with pytest.raises(ConfigError, match=f"{blas.VARIABLE}: must be .* Received: '{named}'"):
            blas._uses_avx512.__wrapped__()
        with pytest.raises(ConfigError, match=f"{blas.VARIABLE}: must be .* Received: '{named}'"):
            CpuBackend()  # whether or not anything is multiplied


@pytest.mark.parametrize(
    ("vendor", "family", "has"),
    [("GenuineIntel", "6", True), ("AuthenticAMD", "25", True), ("AuthenticAMD", "26", False)],
)
def test_without_a_name_vectors_are_for_processors_that_were_measured(
    vendor, family, has, monkeypatch
):
    monkeypatch.delenv(blas.VARIABLE, raising=False)
    monkeypatch.setattr(blas, "features", lambda: {"avx512f"})
    monkeypatch.setattr(blas, "_cpuinfo", lambda: {"vendor_id": vendor, "cpu family": family})
    assert blas._uses_avx512.__wrapped__() is has


needs_sgemm = pytest.mark.skipif(not blas.SGEMM, reason="scipy-openblas32 is not installed")
ROWS, INNER, COLUMNS = 5, 7, 6


def views(array):
    """The matrix by rows, by columns, and as a part of something larger."""
    wide = np.zeros((array.shape[0], 3, array.shape[1]), np.float32)
    wide[:, 1] = array
    return [array, np.asfortranarray(array), wide[:, 1]]


@needs_sgemm
@pytest.mark.parametrize("add", [False, True])
def test_sgemm_of_all_layouts_equals_numpy(add):
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s).astype("f") for s in ((ROWS, INNER), (INNER, COLUMNS)))
    for left, right in itertools.product(views(a), views(b)):
        for out in (np.full((ROWS, COLUMNS), 2, "f"), np.full((ROWS, 2, COLUMNS), 2, "f")[:, 1]):
            assert sgemm(blas.SGEMM, left, right, out, add)
            np.testing.assert_allclose(out, a @ b + 2 * add, rtol=1e-5, atol=1e-5)


@needs_sgemm
def test_sgemm_refuses_other_layouts():
    a, b, out = np.ones((4, 6), "f"), np.ones((6, 8), "f"), np.zeros((4, 8), "f")
    for left, right, target in (
        (a[:, ::2], b[:3], out),  # neither rows nor columns contiguous
        (a[::-1], b, out),
        (a, b, np.zeros((8, 4), "f").T),
        (a[:1], b, out[:1]),  # a vector, which another function multiplies
        (a.astype("d"), b.astype("d"), np.zeros((4, 8))),
    ):
        assert not sgemm(blas.SGEMM, left, right, target, False)
        assert not target.any()
