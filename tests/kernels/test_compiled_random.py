"""Compiled random_uniform: bit for bit the plain kernel's numbers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cerebras_tf.kernels.compiled_random import WHOLE, stream_of, uniform_row
from cerebras_tf.kernels.registry import COMPILED, PLAIN


@pytest.mark.parametrize(
    "shape, seed, seed2, step",
    [
        ((), 1, 2, 0),
        ((0, 3), 1, 2, 0),
        ((3,), 1, 2, 0),
        ((1000, 333), 7, 99, 5),
        ((17,), 2**40 + 5, 2**63 - 1, 2**50 + 1),
        ((1023,), -3, -1, (2**64 - 100) // 1023 // 256),
    ],
)
def test_numbers_equal_the_plain_kernel_s(shape, seed, seed2, step):
    attrs = {"shape": shape, "dtype": "float32"}
    drawn_from = np.int64(step), np.array([seed, seed2], np.int64)
    out = np.full(shape, np.nan, "f")
    COMPILED["random_uniform"].run(*drawn_from, out=(out,), **attrs)
    np.testing.assert_array_equal(out, PLAIN["random_uniform"](*drawn_from, **attrs))


def test_a_counter_that_carries_within_an_invocation_is_right():
    """16383 divides 2^56 - 1, so that this step starts 256 counters before 2^64."""
    size = 2**14 - 1
    step = (2**56 - 1) // size
    assert step * size * 256 == 2**64 - 256
    attrs = {"shape": (size,), "dtype": "float32"}
    seeds = np.array([5, -1], np.int64)
    out = np.empty(size, "f")
    COMPILED["random_uniform"].run(step, seeds, out=(out,), **attrs)
    np.testing.assert_array_equal(out, PLAIN["random_uniform"](step, seeds, **attrs))


@pytest.mark.parametrize("step", [0, 3, (2**56 - 1) // (2**14 - 1)])
def test_a_row_is_a_part_of_the_invocation(step):
    """At the last step the counters carry beyond 64 bits behind number 1024."""
    size = 2**14 - 1
    seeds = np.array([5, -1], np.int64)
    whole = PLAIN["random_uniform"](step, seeds, shape=(size,), dtype="float32")
    stream = stream_of(step, seeds, size)
    for first, length in [(0, 5), (1, 0), (1, 9), (1022, 6), (1027, 40), (5003, 8), (size - 3, 3)]:
        row = uniform_row(stream, first, length, np.empty(length + WHOLE + 3, "f"))
        np.testing.assert_array_equal(row, whole[first : first + length])


def test_other_dtypes_are_left_to_the_plain_kernel():
    assert not COMPILED["random_uniform"].supports(0, (1, 2), shape=(2,), dtype="float64")
