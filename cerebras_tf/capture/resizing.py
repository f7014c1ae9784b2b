"""Lowerings of ops that resize images: gathers of rows and columns, or products with weights.

The weights are those of TensorFlow's kernels. Each output row is a weighted mean of few input rows,
so resizing is a product with one constant matrix for each axis, and its gradient follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cerebras_tf.capture.elementwise import cast
from cerebras_tf.capture.image import require_known
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Array, Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.shape import broadcast_as, reshape

# Steps of the table in which TensorFlow looks up bicubic weights.
_BICUBIC_STEPS = 1024


def _places(op: Operation, dim: int, size: int, shift: float) -> Array:
    """float32 [size]: where an output row lies among the input rows.

    Args:
        op: the op, with align_corners and half_pixel_centers.
        dim: number of input rows.
        size: number of output rows.
        shift: subtracted with half_pixel_centers.
    """
    corners = op.get_attr("align_corners") and size > 1
    scale = np.float32((dim - 1) / (size - 1) if corners else dim / size)
    rows = np.arange(size, dtype=np.float32)
    if op.get_attr("half_pixel_centers"):
        return np.asarray((rows + np.float32(0.5)) * scale - np.float32(shift))
    return np.asarray(rows * scale)


def _nearest_rows(op: Operation, dim: int, size: int) -> Array:
    places = _places(op, dim, size, shift=0.0)
    corners = op.get_attr("align_corners") and size > 1
    nearest = np.floor(places + np.float32(0.5)) if corners else np.floor(places)
    return np.minimum(nearest, dim - 1).astype("int64")


def _bilinear_weights(op: Operation, dim: int, size: int) -> Array:
    """[size, dim]: the two neighbouring rows, by their distance."""
    places = _places(op, dim, size, shift=0.5)
    below = np.floor(places)
    share = places - below
    weights = np.zeros((size, dim), np.float32)
    for row in range(size):
        first, second = max(int(below[row]), 0), min(int(below[row]) + 1, dim - 1)
        weights[row, first] += 1 - share[row]
        weights[row, second] += share[row]
    return weights


def _bicubic_weights(op: Operation, dim: int, size: int) -> Array:
    """[size, dim]: four rows, weighted by the cubic of Keys, 1981, equations 4 and 15.

    Its parameter is -0.5 with half_pixel_centers, where rows outside of the image have no weight,
    else -0.75, where they repeat the border.
    """
    keys = bool(op.get_attr("half_pixel_centers"))
    a = -0.5 if keys else -0.75
    places = _places(op, dim, size, shift=0.5)
    below = np.floor(places)
    share = np.rint((places - below) * _BICUBIC_STEPS) / _BICUBIC_STEPS
    distances = np.stack([share + 1, share, 1 - share, 2 - share], axis=1)
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    found = np.where(distances <= 1, near, far)
    weights = np.zeros((size, dim), np.float64)
    for row in range(size):
        for offset, weight in zip((-1, 0, 1, 2), found[row]):
            at = int(below[row]) + offset
            if not keys or 0 <= at < dim:
                weights[row, min(max(at, 0), dim - 1)] += weight
    if keys:
        weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


def _weighted(b: Builder, x: Value, axis: int, weights: Array) -> Value:
    """The product of weights [size, dim] with one axis of an image [N,H,W,C]."""
    size, dim = weights.shape
    if size == dim and np.array_equal(weights, np.eye(dim)):
        return x
    matrix = b.constant(weights, x.dtype)
    if axis == 2:
        return b.op("matmul", matrix, x, transpose_a=False, transpose_b=False)
    n, height, width, channels = x.shape
    wide = reshape(b, x, (n, height, width * channels))  # type: ignore[operator]
    product = b.op("matmul", matrix, wide, transpose_a=False, transpose_b=False)
    return reshape(b, product, (n, size, width, channels))


_WEIGHTS = {"ResizeBilinear": _bilinear_weights, "ResizeBicubic": _bicubic_weights}


@lowers(*_WEIGHTS)
def _resize(low: Lowering, op: Operation) -> Sequence[Value]:
    x = cast(low.b, low.value(op.inputs[0]), "float32")
    dims = require_known(op, x, x.shape[1:])
    wanted = integers(low, op.inputs[1], "the size")
    for axis, dim, size in zip((1, 2), dims, wanted):
        x = _weighted(low.b, x, axis, _WEIGHTS[op.type](op, dim, size))
    return [x]


@lowers("ResizeBilinearGrad", "ResizeBicubicGrad")
def _resize_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, image = low.inputs(op)
    forward = _WEIGHTS[op.type.removesuffix("Grad")]
    sizes = require_known(op, dy, dy.shape[1:3])
    dims = require_known(op, image, image.shape[1:3])
    for axis, dim, size in zip((1, 2), dims, sizes):
        dy = _weighted(low.b, dy, axis, forward(op, dim, size).T)
    return [cast(low.b, dy, image.dtype)]


@lowers("ResizeNearestNeighbor")
def _resize_nearest(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    dims = require_known(op, x, x.shape[1:])
    for axis, dim, size in zip((1, 2), dims, integers(low, op.inputs[1], "the size")):
        rows = low.b.constant(_nearest_rows(op, dim, size))
        x = low.b.op("gather", x, rows, axis=axis, batch_dims=0)
    return [x]


def _crop_places(b: Builder, low: Value, high: Value, dim: int, size: int) -> Value:
    """[boxes, size]: where the rows of a crop lie among `dim` rows.

    Args:
        b: the builder.
        low: [boxes, 1] first side of every box, 0 and 1 being the first and the last row.
        high: [boxes, 1] second side.
        dim: number of input rows.
        size: number of rows of the crop.
    """
    if size == 1:
        return b.op("mul", b.op("add", low, high), 0.5 * (dim - 1))
    steps = b.constant(np.arange(size), low.dtype)
    step = b.op("mul", b.op("sub", high, low), (dim - 1) / (size - 1))
    return b.op("add", b.op("mul", low, float(dim - 1)), b.op("mul", step, steps))


def _crop_axis(
    b: Builder, places: Value, dim: int, nearest: bool
) -> tuple[Value, list[Value], Value]:
    """(whether inside, rows, weights of the second row): two rows, or one if nearest."""
    inside = b.op(
        "logical_and",
        b.op("greater_equal", places, 0.0),
        b.op("less_equal", places, float(dim - 1)),
    )
    if nearest:
        found = [b.op("floor", b.op("add", places, 0.5))]
    else:
        found = [b.op("floor", places), b.op("ceil", places)]
    within = [
        cast(b, b.op("minimum", b.op("maximum", row, 0.0), float(dim - 1)), "int64")
        for row in found
    ]
    return inside, within, b.op("sub", places, found[0])


@lowers("CropAndResize")
def _crop_and_resize(low: Lowering, op: Operation) -> Sequence[Value]:
    """Images [N,H,W,C] at boxes [B,4] of relative (top, left, bottom, right)."""
    b = low.b
    image, boxes, owners = (low.value(tensor) for tensor in op.inputs[:3])
    image = cast(b, image, "float32")
    dims = require_known(op, image, image.shape[1:])
    wanted = integers(low, op.inputs[3], "the size of the crops")
    nearest = op.get_attr("method") == b"nearest"
    count = boxes.shape[0]
    if count is None:
        raise UnsupportedOpError(
            f"CropAndResize: the number of boxes must be known. Received: {boxes!r}. Set the "
            "static shape."
        )
    axes = []
    for axis in (0, 1):
        sides = [
            b.op("slice", boxes, starts=(0, axis + at), sizes=(count, 1), strides=(1, 1))
            for at in (0, 2)
        ]
        places = _crop_places(b, sides[0], sides[1], dims[axis], wanted[axis])
        axes.append(_crop_axis(b, places, dims[axis], nearest))
    (inside_y, rows, down), (inside_x, columns, across) = axes
    owner = reshape(b, cast(b, owners, "int64"), (count, 1, 1))
    height, width = wanted

    def pixels(row: Value, column: Value) -> Value:
        """[B,h,w,C] at rows [B,h] and columns [B,w]."""
        like = b.op(
            "add", reshape(b, row, (count, height, 1)), reshape(b, column, (count, 1, width))
        )
        shaped = [
            reshape(b, broadcast_as(b, part, like), (*like.shape, 1))
            for part in (
                owner,
                reshape(b, row, (count, height, 1)),
                reshape(b, column, (count, 1, width)),
            )
        ]
        return b.op("gather_nd", image, b.op("concat", *shaped, axis=3))

    def between(first: Value, second: Value, share: Value) -> Value:
        return b.op("add", first, b.op("mul", b.op("sub", second, first), share))

    if nearest:
        found = pixels(rows[0], columns[0])
    else:
        share = reshape(b, across, (count, 1, width, 1))
        lines = [between(pixels(row, columns[0]), pixels(row, columns[1]), share) for row in rows]
        found = between(lines[0], lines[1], reshape(b, down, (count, height, 1, 1)))
    inside = b.op(
        "logical_and",
        reshape(b, inside_y, (count, height, 1, 1)),
        reshape(b, inside_x, (count, 1, width, 1)),
    )
    outside = b.constant(float(op.get_attr("extrapolation_value")), "float32")
    return [b.op("select", inside, found, outside)]
