"""Parity of convolutions with TensorFlow: forward, gradient, and gradient of the gradient."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, normal

pytestmark = pytest.mark.tf

# image, filter, strides, padding, dilations
ROWS = [
    ((2, 7, 8, 3), (3, 3, 3, 4), 1, "SAME", 1),
    ((2, 7, 8, 3), (3, 3, 3, 4), 1, "VALID", 1),
    ((2, 7, 8, 3), (3, 2, 3, 4), 2, "SAME", 1),
    ((2, 7, 8, 3), (2, 3, 3, 4), (2, 3), "VALID", 1),
    ((2, 9, 8, 3), (3, 3, 3, 4), 1, "SAME", 2),
    ((2, 9, 8, 3), (3, 2, 3, 4), 1, "VALID", (2, 3)),
    ((2, 6, 6, 3), (1, 1, 3, 5), 1, "VALID", 1),
    ((2, 6, 6, 3), (1, 1, 3, 5), 2, "SAME", 1),
    ((2, 6, 7, 3), (3, 3, 3, 4), 2, [[0, 0], [2, 1], [0, 1], [0, 0]], 1),
]


@pytest.mark.parametrize(("image", "filters", "strides", "padding", "dilations"), ROWS, ids=str)
def test_convolution_agrees_with_tensorflow(image, filters, strides, padding, dilations):
    def build(x):
        return tf.nn.conv2d(x[0], x[1], strides, padding, dilations=dilations)

    try:
        check_parity(build, [normal(*image), normal(*filters)], "convolution")
    except tf.errors.InvalidArgumentError as e:
        if dilations == 1 or "do not yet support dilation rates" not in str(e):
            raise
        pytest.skip("without oneDNN TensorFlow has no gradient of a dilated convolution")


@pytest.mark.parametrize(("image", "filters", "strides", "padding", "dilations"), ROWS[:4], ids=str)
def test_gradient_ops_of_convolution_agree_with_tensorflow(
    image, filters, strides, padding, dilations
):
    """TensorFlow's Conv2DBackprop ops as part of a model, and their own gradients."""

    def build(x):
        y = tf.nn.conv2d(x[0], x[1], strides, padding, dilations=dilations)
        return tf.gradients(tf.square(y), [x[0], x[1]])

    inputs = [normal(*image, scale=0.2), normal(*filters, scale=0.2)]
    check_parity(build, inputs, "convolution")


@pytest.mark.parametrize(("strides", "padding"), [(1, "SAME"), (2, "SAME"), (2, "VALID")])
def test_transposed_convolution_agrees_with_tensorflow(strides, padding):
    layer = {"SAME": (2, 4 * strides, 5 * strides, 3), "VALID": (2, 9, 11, 3)}[padding]

    def build(x):
        return tf.nn.conv2d_transpose(x[0], x[1], layer, strides, padding)

    check_parity(build, [normal(2, 4, 5, 6), normal(3, 3, 3, 6)], "convolution")


def test_one_dimensional_convolution_agrees_with_tensorflow():
    def build(x):
        return tf.nn.conv1d(x[0], x[1], stride=2, padding="SAME")

    check_parity(build, [normal(2, 9, 3), normal(3, 3, 4)], "convolution")


def test_grouped_convolution_agrees_with_tensorflow():
    def build(x):
        return tf.nn.conv2d(x[0], x[1], 1, "SAME")

    check_parity(build, [normal(2, 6, 6, 4), normal(3, 3, 2, 6)], "convolution", gradient=False)


DEPTHWISE = [(1, 1, "SAME"), (2, 2, "SAME"), (3, 1, "VALID")]


@pytest.mark.parametrize(("multiplier", "strides", "padding"), DEPTHWISE)
def test_depthwise_convolution_agrees_with_tensorflow(multiplier, strides, padding):
    def build(x):
        return tf.nn.depthwise_conv2d(x[0], x[1], [1, strides, strides, 1], padding)

    check_parity(build, [normal(2, 6, 7, 4), normal(3, 2, 4, multiplier)], "convolution")


def test_gradient_ops_of_depthwise_convolution_agree_with_tensorflow():
    def build(x):
        y = tf.nn.depthwise_conv2d(x[0], x[1], [1, 1, 1, 1], "SAME")
        return tf.gradients(tf.square(y), [x[0], x[1]])

    check_parity(build, [normal(2, 6, 7, 4), normal(3, 2, 4, 2)], "convolution", gradient=False)
