"""The compiled matmul equals the plain one, for operands of every layout, without copies."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.kernels.registry import COMPILED, evaluate

RANDOM = np.random.default_rng(4)
SHAPES = [((4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3)), ((2, 6, 4, 5), (5, 3)), ((4, 5), (2, 5, 3))]
SHAPES += [((3, 1, 4, 5), (2, 5, 3)), ((1, 5), (5, 1)), ((2, 0, 5), (5, 3)), ((4, 0), (0, 3))]


def _operand(shape, transpose, dtype="float32"):
    stored = (*shape[:-2], shape[-1], shape[-2]) if transpose else shape
    return RANDOM.standard_normal(stored).astype(dtype)


def _compiled(a, b, **attrs):
    expected = evaluate("matmul", [a, b], attrs)[0]
    out = np.full(expected.shape, np.nan, expected.dtype)
    COMPILED["matmul"].run(a, b, out=(out,), **attrs)
    return out, expected


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_compiled_equals_plain(shapes, first, second):
    a, b = _operand(shapes[0], first), _operand(shapes[1], second)
    out, expected = _compiled(a, b, transpose_a=first, transpose_b=second)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_plain_is_the_sum_of_products():
    a, b = _operand((2, 4, 5), False, "float64"), _operand((2, 3, 5), False, "float64")
    (found,) = evaluate("matmul", [a, b], {"transpose_b": True})
    np.testing.assert_allclose(found, (a[:, :, None, :] * b[:, None, :, :]).sum(-1), rtol=1e-12)


def test_integers_are_left_to_the_plain_kernel():
    supports = COMPILED["matmul"].supports
    floats, integers = np.zeros((2, 2), np.float32), np.zeros((2, 2), np.int32)
    assert supports(floats, floats, transpose_a=False, transpose_b=False)
    assert not supports(integers, integers, transpose_a=False, transpose_b=False)
