"""Plain elementwise kernels where NumPy alone would overflow, round or type otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.kernels.registry import PLAIN, evaluate
from cerebras_tf.ops import OPS, infer

WIDE = np.array([-1e4, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4], np.float32)


def _one(op, *arrays, **attrs):
    return evaluate(op, arrays, attrs)[0]


def test_sigmoid_and_softplus_do_not_overflow():
    np.testing.assert_array_equal(_one("sigmoid", WIDE)[[0, 3, -1]], [0.0, 0.5, 1.0])
    np.testing.assert_array_equal(_one("softplus", WIDE)[[0, -1]], [0.0, 1e4])


def test_integer_division_truncates_and_floor_division_floors():
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    np.testing.assert_array_equal(_one("div", x, y), [3, -3, -3, 3])
    np.testing.assert_array_equal(_one("floor_div", x, y), [3, -4, -4, 3])
    np.testing.assert_array_equal(_one("trunc_mod", x, y), [1, -1, 1, -1])
    np.testing.assert_array_equal(_one("floor_mod", x, y), [1, 1, -1, -1])


def test_div_no_nan_is_zero_where_the_divisor_is():
    found = _one("div_no_nan", np.float32([1, 0, np.nan, 4]), np.float32([0, 0, 0, 2]))
    np.testing.assert_array_equal(found, [0, 0, 0, 2])


@pytest.mark.parametrize("op", ["erf", "erfc"])
def test_error_functions_equal_the_mathematical_library(op):
    x = np.linspace(-4, 4, 33)
    np.testing.assert_array_equal(_one(op, x), [getattr(math, op)(value) for value in x])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "op",
    [
        name
        for name, definition in OPS.items()
        if definition.family == "elementwise" and name in PLAIN and name not in ("cast", "select")
    ],
)
def test_kernels_return_the_inferred_dtype_for_scalars_and_empty_arrays(op, dtype):
    if op.startswith("logical"):
        dtype = "bool"
    for shape in ((), (0, 3), (2,)):
        array = np.ones(shape, dtype)
        count = 1 if _is_unary(op) else 2
        values = [Graph().add_input("x", TensorType(dtype, shape)) for _ in range(count)]
        (expected,) = infer(op, values, {})
        found = _one(op, *[array] * count)
        assert (found.dtype, found.shape) == (expected.numpy_dtype, shape)


def _is_unary(op):
    try:
        evaluate(op, [np.ones(1, bool if op.startswith("logical") else np.float32)], {})
    except TypeError:
        return False
    return True


def test_cast_to_bfloat16_is_held_as_float32():
    assert _one("cast", WIDE, dtype="bfloat16").dtype == np.float32


def test_select_keeps_the_dtype_of_its_choices():
    found = _one("select", np.array([True, False]), np.float32([1, 2]), np.float32(0))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [1, 0])
