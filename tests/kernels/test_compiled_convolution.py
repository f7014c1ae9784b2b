"""Compiled convolutions against their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cerebras_tf.kernels import COMPILED, PLAIN, compiled_convolution
from cerebras_tf.kernels.convolution import counts_of
from cerebras_tf.kernels.scratch import peak_bytes, reset_peak
from tests.tolerances import TOLERANCES

CASES = list(
    itertools.product(
        [(3, 3), (1, 1), (2, 5)],
        [(1, 1), (2, 1)],
        [((0, 0), (0, 0)), ((1, 1), (2, 0))],
        [(1, 1), (1, 2)],
        ["float32", "float64"],
    )
)


class Shaped:
    """A type as kernels' prices see it."""

    def __init__(self, array):
        self.shape, self.numpy_dtype = array.shape, array.dtype


@pytest.mark.parametrize("window, strides, padding, dilations, dtype", CASES)
def test_results_are_those_of_the_plain_kernels(window, strides, padding, dilations, dtype):
    random = np.random.default_rng(3)

    def drawn(*shape):
        return random.standard_normal(shape).astype(dtype)

    x, w = drawn(3, 9, 12, 4), drawn(*window, 4, 5)
    counts = counts_of((9, 12), window, strides, padding, dilations)
    dy = drawn(3, *counts, 5)
    attrs = {"strides": strides, "padding": padding, "dilations": dilations}
    for op, operands, more in [
        ("conv2d", (x, w), {}),
        ("conv2d_filter_grad", (x, dy), {"window": window}),
        ("conv2d_input_grad", (w, dy), {"size": (9, 12)}),
    ]:
        expected = PLAIN[op](*operands, **attrs, **more)
        out = np.full_like(expected, np.nan)
        reset_peak()
        COMPILED[op].run(*operands, out=(out,), **attrs, **more)
        rtol, atol = TOLERANCES["convolution"]
        np.testing.assert_allclose(out, expected, rtol=rtol, atol=atol)
        planned = COMPILED[op].scratch(*map(Shaped, operands), **attrs, **more)
        assert peak_bytes() <= planned.shared + (1 << 18)  # a product's own scratch memory


def test_an_image_that_is_its_own_patches_is_not_copied():
    x = np.zeros((2, 3, 3, 4), np.float32)
    with compiled_convolution._patches(x, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)) as patches:
        assert np.shares_memory(patches, x)
