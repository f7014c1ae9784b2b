"""Parity of pooling with TensorFlow: forward, gradient, and gradient of the gradient."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal

pytestmark = pytest.mark.tf

POOLS = {"max": tf.nn.max_pool2d, "avg": tf.nn.avg_pool2d}
# window, strides, padding
ROWS = [(2, 2, "VALID"), (3, 2, "SAME"), ((2, 3), (1, 2), "SAME"), (3, 1, "VALID"), (2, 3, "SAME")]


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize(("window", "strides", "padding"), ROWS, ids=str)
def test_pooling_agrees_with_tensorflow(kind, window, strides, padding):
    def build(x):
        return POOLS[kind](x[0], window, strides, padding)

    check_parity(build, [normal(2, 7, 8, 3)], "convolution")


@pytest.mark.parametrize("kind", POOLS)
def test_gradient_of_pooling_gradient_agrees_with_tensorflow(kind):
    def build(x):
        y = POOLS[kind](x[0], 3, 2, "SAME")
        return tf.gradients(tf.square(y), x[0])[0]

    check_parity(build, [normal(2, 7, 8, 3)], "convolution")


def test_first_of_several_largest_elements_gets_the_gradient_as_in_tensorflow():
    tied = integers(2, 7, 8, 3, high=2).astype(np.float32)
    check_parity(lambda x: tf.nn.max_pool2d(x[0], 3, 2, "SAME"), [tied], "convolution")
