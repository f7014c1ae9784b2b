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
