"""Compiled sums against exact ones, and their accuracy against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.compare import check_compiled
from tests.tolerances import TOLERANCES

pytest.importorskip("numba")

from cerebras_tf.kernels.registry import COMPILED

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
