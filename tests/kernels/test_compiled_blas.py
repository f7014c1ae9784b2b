"""BLAS called from compiled code gives NumPy's products, and leaves out what it cannot read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cerebras_tf.kernels import blas
from cerebras_tf.kernels.compiled_blas import sgemm

pytestmark = pytest.mark.skipif(not blas.SGEMM, reason="the library is not installed")
ROWS, INNER, COLUMNS = 5, 7, 6


def views(array):
    """The matrix by rows, by columns, and as a part of something larger."""
    wide = np.zeros((array.shape[0], 3, array.shape[1]), np.float32)
    wide[:, 1] = array
    return [array, np.asfortranarray(array), wide[:, 1]]


@pytest.mark.parametrize("add", [False, True])
def test_all_layouts_give_the_product(add):
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s).astype("f") for s in ((ROWS, INNER), (INNER, COLUMNS)))
    for left, right in itertools.product(views(a), views(b)):
        for out in (np.full((ROWS, COLUMNS), 2, "f"), np.full((ROWS, 2, COLUMNS), 2, "f")[:, 1]):
            assert sgemm(blas.SGEMM, left, right, out, add)
            np.testing.assert_allclose(out, a @ b + 2 * add, rtol=1e-5, atol=1e-5)


def test_what_it_cannot_read_is_left_as_it_is():
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
