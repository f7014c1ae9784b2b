"""Finite numbers are told from others in every type and at every place."""

import numpy as np
import pytest

from cerebras_tf.kernels.compiled_finite import all_finite
from cerebras_tf.kernels.half_precision import to_bfloat16


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
