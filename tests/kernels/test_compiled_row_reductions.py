"""A row's maximum, found by integers, equals NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_row_reductions import row_max


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


def test_row_max_of_nothing_is_minus_infinity():
    assert maximum(np.empty(0, "f")) == -np.inf
