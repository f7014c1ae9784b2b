"""Parity of three-dimensional convolutions and pooling with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal

pytestmark = pytest.mark.tf

VOLUME = (2, 5, 6, 7, 3)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("stride", "dilation"), [(2, 1), (1, 2)])
def test_convolution_of_volumes_agrees_with_tensorflow(padding, stride, dilation):
    def build(x):
        strides, dilations = [1, stride, stride, 1, 1], [1, dilation, 1, dilation, 1]
        return tf.nn.conv3d(x[0], x[1], strides, padding, dilations=dilations)

    inputs = [normal(*VOLUME, scale=0.3), normal(3, 2, 3, 3, 4, scale=0.3)]
    check_parity(build, inputs, "convolution")


@pytest.mark.parametrize(("padding", "size"), [("SAME", (9, 11, 7)), ("VALID", (11, 12, 9))])
def test_transposed_convolution_of_volumes_agrees_with_tensorflow(padding, size):
    def build(x):
        return tf.nn.conv3d_transpose(x[0], x[1], (2, *size, 4), [1, 2, 2, 1, 1], padding)

    inputs = [normal(*VOLUME, scale=0.3), normal(3, 2, 3, 4, 3, scale=0.3)]
    check_parity(build, inputs, "convolution")


def test_filter_gradient_of_volumes_agrees_with_tensorflow():
    def build(x):
        sizes, strides = [3, 2, 3, 3, 4], [1, 2, 2, 1, 1]
        return tf.raw_ops.Conv3DBackpropFilterV2(
            input=x[0], filter_sizes=sizes, out_backprop=x[1], strides=strides, padding="SAME"
        )

    inputs = [normal(*VOLUME, scale=0.3), normal(2, 3, 3, 7, 4, scale=0.3)]
    check_parity(build, inputs, "convolution")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("tied", [False, True])
def test_pooling_of_volumes_agrees_with_tensorflow(padding, tied):
    """Of equal elements, the first one of a window receives the gradient."""

    def build(x):
        windows = [2, 3, 2], [2, 2, 1], padding
        return [tf.nn.max_pool3d(x[0], *windows), tf.nn.avg_pool3d(x[0], *windows)]

    numbers = integers(*VOLUME, high=3).astype(np.float32) if tied else normal(*VOLUME)
    check_parity(build, [numbers], "convolution")
