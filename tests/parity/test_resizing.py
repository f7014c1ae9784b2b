"""Parity of ops that resize images with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, normal

pytestmark = pytest.mark.tf

SIZES = [(8, 12), (7, 3), (1, 9)]
CORNERS: list[dict] = [{}, {"align_corners": True}, {"half_pixel_centers": True}]


@pytest.mark.parametrize("method", ["Bicubic", "Bilinear", "NearestNeighbor"])
@pytest.mark.parametrize("corners", CORNERS, ids=lambda options: "".join(options) or "plain")
def test_resizing_agrees_with_tensorflow(method, corners):
    resize = getattr(tf.raw_ops, f"Resize{method}")

    def build(x):
        return [resize(images=x[0], size=size, **corners) for size in SIZES]

    check_parity(build, [normal(2, 4, 6, 3)], "reduction")


@pytest.mark.parametrize("method", ["Bicubic", "Bilinear"])
def test_gradient_of_resizing_in_tensorflows_backward_graph(method):
    grad = getattr(tf.raw_ops, f"Resize{method}Grad")

    def build(x):
        return grad(grads=x[0], original_image=x[1], half_pixel_centers=True)

    check_parity(build, [normal(2, 7, 3, 2), normal(2, 4, 6, 2)], "reduction", gradient=False)


BOXES = np.array([[0.1, 0.2, 0.8, 0.9], [-0.2, 0, 1.1, 0.5], [0.9, 0.9, 0.2, 0.1]], np.float32)
OWNERS = np.array([0, 1, 1], np.int32)


@pytest.mark.parametrize(("method", "size"), [("bilinear", (1, 4)), ("nearest", (3, 4))])
def test_crops_agree_with_tensorflow(method, size):
    """Boxes have a gradient unless pixels are those nearest."""

    def build(x):
        boxes = x[1] if method == "bilinear" else tf.stop_gradient(x[1])
        return tf.image.crop_and_resize(x[0], boxes, x[2], size, method, extrapolation_value=0.5)

    check_parity(build, [normal(2, 5, 7, 3), BOXES, OWNERS], "reduction")
