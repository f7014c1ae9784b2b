"""Parity of pixel-moving ops with TensorFlow."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, normal

pytestmark = pytest.mark.tf

IMAGE = (2, 4, 6, 8)
ROWS = [
    ("space_to_depth", lambda x: tf.nn.space_to_depth(x[0], 2)),
    ("depth_to_space", lambda x: tf.nn.depth_to_space(x[0], 2)),
    ("space_to_batch", lambda x: tf.space_to_batch(x[0], [2, 3], [[1, 1], [2, 1]])),
    ("batch_to_space", lambda x: tf.batch_to_space(x[0], [1, 2], [[1, 1], [0, 3]])),
]


@pytest.mark.parametrize(("name", "build"), ROWS, ids=[row[0] for row in ROWS])
def test_pixel_moving_op_agrees_with_tensorflow(name, build):
    check_parity(build, [normal(*IMAGE)], "shape")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_dilated_convolution_over_batches_agrees_with_tensorflow(padding):
    def build(x):
        return tf.nn.convolution(x[0], x[1], padding=padding, dilations=(2, 3))

    inputs = [normal(2, 9, 11, 3, scale=0.3), normal(3, 3, 3, 4, scale=0.3)]
    check_parity(build, inputs, "convolution")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_patches_and_positions_of_maxima_agree_with_tensorflow(padding):
    def build(x):
        patches = tf.image.extract_patches(x[0], [1, 2, 3, 1], [1, 2, 1, 1], [1, 1, 2, 1], padding)
        best, places = tf.nn.max_pool_with_argmax(x[0], 2, 2, padding)
        _, of_batch = tf.nn.max_pool_with_argmax(x[0], 3, 2, padding, include_batch_in_index=True)
        return [patches, best, places, of_batch]

    check_parity(build, [normal(*IMAGE)], "reduction")
