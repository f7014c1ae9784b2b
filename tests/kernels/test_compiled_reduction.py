"""Compiled reductions against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels.compiled_reduction import all_finite
from cerebras_tf.kernels.half_precision import to_bfloat16
from cerebras_tf.kernels.registry import COMPILED
from tests.kernels.compare import check_compiled
from tests.tolerances import TOLERANCES

NEAR = TOLERANCES["reduction"]
RANDOM = np.random.default_rng(12)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    "shape, axes",
    [
        ((5, 7), (0,)),
        ((5, 7), (1,)),
        ((5, 7), (0, 1)),
        ((4, 300, 33), (0, 1)),
        ((4, 3, 2050), (1, 2)),
        ((40000,), (0,)),
        ((0, 3), (0,)),
        ((3, 0), (1,)),
        ((0, 3), (1,)),
        ((1, 1), (0, 1)),
    ],
)
def test_sum_equals_the_plain_kernel(shape, axes, keepdims):
    x = RANDOM.standard_normal(shape).astype("f")
    assert COMPILED["sum"].supports(x, axes=axes, keepdims=keepdims)
    check_compiled("sum", [x], NEAR, axes=axes, keepdims=keepdims)


def test_strided_operands_give_the_same_numbers():
    x = RANDOM.standard_normal((30, 40)).astype("f")
    for view in (x[::2], x[:, ::3], x.T):
        check_compiled("sum", [view], NEAR, axes=(0,), keepdims=False)


def test_middle_axes_and_other_dtypes_are_left_to_the_plain_kernel():
    supports = COMPILED["sum"].supports
    assert not supports(np.ones((2, 3, 4), "f"), axes=(1,), keepdims=False)
    assert not supports(np.ones((2, 3)), axes=(0,), keepdims=False)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_sums_are_at_least_as_accurate_as_pairwise_ones(axes):
    x = RANDOM.random((3000, 3000)).astype("f")
    exact = x.sum(axis=axes, dtype=np.float64)
    out = np.empty(exact.shape, "f")
    COMPILED["sum"].run(x, out=(out,), axes=axes, keepdims=False)
    assert np.abs(out / exact - 1).max() <= 1e-6


@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (300, 129), (0, 4), (1 << 15, 3)])
def test_sum_of_squares_equals_the_plain_kernel(shape):
    x = np.random.default_rng(5).standard_normal(shape).astype("f")
    out, *_ = check_compiled("sum_of_squares", [x], NEAR)
    np.testing.assert_allclose(out, np.square(x.astype("d")).sum(), rtol=1e-6)


from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_reduction import row_max


@jit(any_order=True, cache=False)
def maximum(row):
    return row_max(row)


@pytest.mark.parametrize("size", [1, 15, 16, 100])
def test_row_max_equals_numpys(size):
    row = np.random.default_rng(size).standard_normal(size).astype("f")
    for shift in (-10, 0, 10):
        assert maximum(row + np.float32(shift)) == (row + np.float32(shift)).max()


@pytest.mark.parametrize(
    "row",
    [[-np.inf, -np.inf], [-np.inf, -3e38], [1, np.inf], [-0.0, 0.0], [-1e-45, -1.0], [1e-45, 0.0]],
)
def test_row_max_of_extremes_equals_numpys(row):
    given = np.array(row, "f")
    assert maximum(given) == given.max()


def test_row_max_of_an_empty_row_is_minus_infinity():
    assert maximum(np.empty(0, "f")) == -np.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_all_finite_is_that_of_numpy(dtype):
    random = np.random.default_rng(0)
    wide = np.float64 if dtype == "float64" else np.float32
    largest = np.finfo(np.float16 if dtype == "float16" else wide).max

    def rests(array):
        return to_bfloat16(array) if dtype == "bfloat16" else array.astype(dtype)

    for size in (0, 1, 7, 1000):
        array = random.standard_normal(size).astype(wide)
        array[: size // 2] = 0
        if dtype != "bfloat16":
            array[-1:] = -largest
        assert all_finite(rests(array), dtype)
        for bad in (np.nan, np.inf, -np.inf):
            for at in {0, size // 2, size - 1} if size else ():
                damaged = array.copy()
                damaged[at] = bad
                assert not all_finite(rests(damaged), dtype)


def test_types_without_such_values_are_finite():
    assert all_finite(np.full(9, -1, np.int32), "int32")
    assert all_finite(np.full(9, 255, np.uint8).view(bool), "bool")
