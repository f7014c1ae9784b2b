"""Lowerings of ops that move pixels between space, channels and batch, or repeat them.

All are reshapes, transposes and gathers at constant positions. Interpolation between pixels is not
lowered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cerebras_tf.capture.convolution import from_nhwc, to_nhwc
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.shape import reshape


def _dims(op: Operation, x: Value) -> list[int]:
    known = [dim for dim in x.shape if isinstance(dim, int)]
    if len(known) < x.type.rank:
        raise UnsupportedOpError(
            f"{op.type}: the image must have a known shape. Received: {x!r}. Set the static shape."
        )
    return known


@lowers("SpaceToDepth")
def _space_to_depth(low: Lowering, op: Operation) -> Sequence[Value]:
    x, size = to_nhwc(low.b, op, low.inputs(op)[0]), int(op.get_attr("block_size"))
    n, h, w, c = _dims(op, x)
    blocks = reshape(low.b, x, (n, h // size, size, w // size, size, c))
    moved = low.b.op("transpose", blocks, permutation=(0, 1, 3, 2, 4, 5))
    result = reshape(low.b, moved, (n, h // size, w // size, size * size * c))
    return [from_nhwc(low.b, op, result)]


@lowers("DepthToSpace")
def _depth_to_space(low: Lowering, op: Operation) -> Sequence[Value]:
    x, size = to_nhwc(low.b, op, low.inputs(op)[0]), int(op.get_attr("block_size"))
    n, h, w, c = _dims(op, x)
    blocks = reshape(low.b, x, (n, h, w, size, size, c // (size * size)))
    moved = low.b.op("transpose", blocks, permutation=(0, 1, 3, 2, 4, 5))
    result = reshape(low.b, moved, (n, h * size, w * size, c // (size * size)))
    return [from_nhwc(low.b, op, result)]


@lowers("SpaceToBatchND")
def _space_to_batch(low: Lowering, op: Operation) -> Sequence[Value]:
    """Each offset within a block becomes an image; dilated convolutions begin with it."""
    x, blocks = low.value(op.inputs[0]), integers(low, op.inputs[1], "the block shape")
    pairs = low.static(op.inputs[2], "paddings").tolist()
    rank = len(blocks)
    paddings = (
        (0, 0),
        *((int(a), int(z)) for a, z in pairs),
        *((0, 0),) * (x.type.rank - 1 - rank),
    )
    padded = low.b.op("pad", x, paddings=paddings, value=0)
    batch, *dims = _dims(op, padded)
    split: list[int] = [batch]
    for dim, block in zip(dims, blocks):
        split += [dim // block, block]
    rest = dims[rank:]
    parts = reshape(low.b, padded, (*split, *rest))
    order = (
        *range(2, 2 * rank + 1, 2),
        0,
        *range(1, 2 * rank, 2),
        *range(2 * rank + 1, parts.type.rank),
    )
    moved = low.b.op("transpose", parts, permutation=order)
    space = [dim // block for dim, block in zip(dims, blocks)]
    return [reshape(low.b, moved, (batch * math.prod(blocks), *space, *rest))]


@lowers("BatchToSpaceND")
def _batch_to_space(low: Lowering, op: Operation) -> Sequence[Value]:
    """The inverse of SpaceToBatchND, with the borders cut off."""
    x, blocks = low.value(op.inputs[0]), integers(low, op.inputs[1], "the block shape")
    crops = low.static(op.inputs[2], "crops").tolist()
    rank, (batch, *dims) = len(blocks), _dims(op, x)
    images = batch // math.prod(blocks)
    parts = reshape(low.b, x, (*blocks, images, *dims))
    order = [rank]
    for axis in range(rank):
        order += [rank + 1 + axis, axis]
    order += range(2 * rank + 1, parts.type.rank)
    moved = low.b.op("transpose", parts, permutation=tuple(order))
    space = [dim * block for dim, block in zip(dims, blocks)]
    whole = reshape(low.b, moved, (images, *space, *dims[rank:]))
    starts = (0, *(int(a) for a, _ in crops), *(0,) * len(dims[rank:]))
    kept = [dim - int(a) - int(z) for dim, (a, z) in zip(space, crops)]
    sizes = (images, *kept, *dims[rank:])
    if sizes == whole.shape:
        return [whole]
    return [low.b.op("slice", whole, starts=starts, sizes=sizes, strides=(1,) * len(sizes))]


@lowers("ResizeNearestNeighbor")
def _resize_nearest(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    for axis, size in zip((1, 2), integers(low, op.inputs[1], "the size")):
        x = _nearest(low.b, op, x, axis, size)
    return [x]


def _nearest(b: Builder, op: Operation, x: Value, axis: int, size: int) -> Value:
    """Gathers, for every new pixel of an axis, the old one that TensorFlow's kernel takes."""
    dim = _dims(op, x)[axis]
    corners = op.get_attr("align_corners") and size > 1
    scale = np.float32((dim - 1) / (size - 1) if corners else dim / size)
    centers = op.get_attr("half_pixel_centers")
    places = (np.arange(size, dtype=np.float32) + np.float32(0.5 if centers else 0)) * scale
    nearest = np.floor(places + np.float32(0.5)) if corners else np.floor(places)
    positions = np.minimum(nearest, dim - 1).astype("int64")
    return b.op("gather", x, b.constant(positions), axis=axis, batch_dims=0)
