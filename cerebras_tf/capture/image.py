"""Lowerings of ops on images: convolution, pooling, and ops that move or repeat pixels.

Layouts become NHWC and padding explicit here. A grouped convolution becomes one convolution per
group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, sizes
from cerebras_tf.capture.slicing import concatenated
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Size, Value, bound_of
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.convolution import Padding
from cerebras_tf.ops.shape import reshape
from cerebras_tf.ops.slicing import cut

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def is_nchw(op: Operation) -> bool:
    """Whether images are [N,C,H,W] and not [N,H,W,C]; other layouts raise UnsupportedOpError."""
    layout = op.get_attr("data_format").decode()
    if layout not in ("NHWC", "NCHW"):
        raise UnsupportedOpError(
            f"{op.type}: data_format must be NHWC or NCHW. Received: {layout}. Transpose."
        )
    return bool(layout == "NCHW")


def to_nhwc(b: Builder, op: Operation, image: Value) -> Value:
    """An image of the operation's layout as [N,H,W,C]."""
    return b.op("transpose", image, permutation=_TO_NHWC) if is_nchw(op) else image


def from_nhwc(b: Builder, op: Operation, image: Value) -> Value:
    """An image [N,H,W,C] in the operation's layout."""
    return b.op("transpose", image, permutation=_TO_NCHW) if is_nchw(op) else image


def spatial(op: Operation, numbers: Sequence[int]) -> tuple[int, int]:
    """(height, width) of four numbers in the operation's layout; the others must be 1."""
    given = [int(number) for number in numbers]
    height, width = (2, 3) if is_nchw(op) else (1, 2)
    if given[0] != 1 or given[3 if height == 1 else 1] != 1:
        raise UnsupportedOpError(
            f"{op.type}: windows and strides must be 1 in batch and channels. Received: {given}. "
            "Reshape and reduce instead."
        )
    return given[height], given[width]


def padding_of(
    op: Operation, size: Shape, window: Shape, strides: Sequence[int], dilations: Sequence[int]
) -> list[tuple[int, int]]:
    """(before, after) of each axis for SAME and VALID; SAME puts the odd element last, as
    TensorFlow does.

    Raises:
        UnsupportedOpError: the image's size is unknown.
        GraphError: the padding differs from batch to batch.
    """
    if op.get_attr("padding") == b"VALID":
        return [(0, 0)] * len(strides)
    sides = []
    for dim, span, stride, dilation in zip(size, window, strides, dilations):
        if dim is None or not isinstance(span, int):
            raise UnsupportedOpError(
                f"{op.type}: padding SAME needs a known image size. Received: {tuple(size)}. "
                "Set the static shape."
            )
        # A symbolic size must divide, or the padding would differ from batch to batch.
        rest = bound_of(dim - dim // stride * stride)
        total = max((span - 1) * dilation + 1 - (rest or stride), 0)
        sides.append((total // 2, total - total // 2))
    return sides


def explicit_padding(
    op: Operation, size: Shape, window: Shape, strides: tuple[int, int], dilations: tuple[int, int]
) -> Padding:
    """((top, bottom), (left, right)); raises as padding_of."""
    if op.get_attr("padding") == b"EXPLICIT":
        given = [int(number) for number in op.get_attr("explicit_paddings")]
        at = 4 if is_nchw(op) else 2
        return (given[at], given[at + 1]), (given[at + 2], given[at + 3])
    height, width = padding_of(op, size, window, strides, dilations)
    return height, width


def _conv_geometry(op: Operation, size: Shape, window: Shape) -> dict[str, object]:
    strides = spatial(op, op.get_attr("strides"))
    dilations = spatial(op, op.get_attr("dilations"))
    padding = explicit_padding(op, size, window, strides, dilations)
    return {"strides": strides, "dilations": dilations, "padding": padding}


def _image_shape(low: Lowering, op: Operation) -> list[Size]:
    """[N,H,W,C] of the operand that holds the shape of an image in the op's layout."""
    shape = sizes(low, op.inputs[0], "the shape of the image")
    return [shape[axis] for axis in _TO_NHWC] if is_nchw(op) else shape


@lowers("Conv2D")
def _conv2d(low: Lowering, op: Operation) -> Sequence[Value]:
    x, w = low.inputs(op)
    x = to_nhwc(low.b, op, x)
    attrs = _conv_geometry(op, x.shape[1:3], w.shape[:2])
    groups = _group_count(x.shape[3], w.shape[2])
    return [from_nhwc(low.b, op, _by_group(low.b, "conv2d", x, w, groups, attrs))]


def _group_count(channels: Optional[Size], taken: Optional[Size]) -> int:
    """Groups of a convolution whose filters read `taken` of the image's channels."""
    if not isinstance(channels, int) or not isinstance(taken, int):
        raise UnsupportedOpError(
            f"convolution: the number of channels must be known. Received: {channels} of the "
            f"image, {taken} of the filters. Set the static shape."
        )
    return channels // taken


def _by_group(
    b: Builder, name: str, first: Value, second: Value, groups: int, attrs: dict[str, object]
) -> Value:
    """Applies an op to every group of the last axis of both operands."""
    results = []
    for i in range(groups):
        sizes = [(value.shape[3] or 0) // groups for value in (first, second)]
        parts = [cut(b, v, 3, i * size, size) for v, size in zip((first, second), sizes)]
        results.append(b.op(name, *parts, **attrs))
    return concatenated(b, results, 3)


@lowers("Conv2DBackpropInput")
def _conv2d_input_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    shape = _image_shape(low, op)
    w, dy = low.value(op.inputs[1]), to_nhwc(low.b, op, low.value(op.inputs[2]))
    attrs = dict(_conv_geometry(op, tuple(shape[1:3]), w.shape[:2]), size=tuple(shape[1:3]))
    groups = _group_count(shape[3], w.shape[2])
    return [from_nhwc(low.b, op, _by_group(low.b, "conv2d_input_grad", w, dy, groups, attrs))]


@lowers("Conv2DBackpropFilter")
def _conv2d_filter_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    x, dy = (to_nhwc(low.b, op, low.value(op.inputs[i])) for i in (0, 2))
    shape = integers(low, op.inputs[1], "the shape of the filter")
    window = (shape[0], shape[1])
    attrs = dict(_conv_geometry(op, x.shape[1:3], window), window=window)
    groups = _group_count(x.shape[3], shape[2])
    return [_by_group(low.b, "conv2d_filter_grad", x, dy, groups, attrs)]


@lowers("DepthwiseConv2dNative")
def _depthwise(low: Lowering, op: Operation) -> Sequence[Value]:
    x, w = low.inputs(op)
    x = to_nhwc(low.b, op, x)
    attrs = _conv_geometry(op, x.shape[1:3], w.shape[:2])
    return [from_nhwc(low.b, op, low.b.op("depthwise_conv2d", x, w, **attrs))]


@lowers("DepthwiseConv2dNativeBackpropInput")
def _depthwise_input_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    size = tuple(_image_shape(low, op)[1:3])
    w, dy = low.value(op.inputs[1]), to_nhwc(low.b, op, low.value(op.inputs[2]))
    attrs = dict(_conv_geometry(op, size, w.shape[:2]), size=size)
    return [from_nhwc(low.b, op, low.b.op("depthwise_conv2d_input_grad", w, dy, **attrs))]


@lowers("DepthwiseConv2dNativeBackpropFilter")
def _depthwise_filter_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    x, dy = (to_nhwc(low.b, op, low.value(op.inputs[i])) for i in (0, 2))
    window = tuple(integers(low, op.inputs[1], "the shape of the filter")[:2])
    attrs = dict(_conv_geometry(op, x.shape[1:3], window), window=window)
    return [low.b.op("depthwise_conv2d_filter_grad", x, dy, **attrs)]


def _pool_geometry(low: Lowering, op: Operation, size: Shape) -> dict[str, object]:
    """Window, strides and padding. V2 ops have window and strides as their last operands."""
    if op.type.endswith("V2"):
        window = spatial(op, integers(low, op.inputs[-2], "the window"))
        strides = spatial(op, integers(low, op.inputs[-1], "strides"))
    else:
        window = spatial(op, op.get_attr("ksize"))
        strides = spatial(op, op.get_attr("strides"))
    padding = explicit_padding(op, size, window, strides, (1, 1))
    return {"window": window, "strides": strides, "padding": padding}


@lowers("AvgPool", "MaxPool", "MaxPoolV2")
def _pool(low: Lowering, op: Operation) -> Sequence[Value]:
    name = "avg_pool" if op.type == "AvgPool" else "max_pool"
    x = to_nhwc(low.b, op, low.value(op.inputs[0]))
    return [from_nhwc(low.b, op, low.b.op(name, x, **_pool_geometry(low, op, x.shape[1:3])))]


@lowers("MaxPoolGrad", "MaxPoolGradV2", "MaxPoolGradGrad", "MaxPoolGradGradV2")
def _max_pool_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    x, y, dy = (to_nhwc(low.b, op, low.value(op.inputs[i])) for i in range(3))
    name = "max_pool_select" if "GradGrad" in op.type else "max_pool_grad"
    attrs = _pool_geometry(low, op, x.shape[1:3])
    return [from_nhwc(low.b, op, low.b.op(name, x, y, dy, **attrs))]


@lowers("AvgPoolGrad")
def _avg_pool_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy = to_nhwc(low.b, op, low.value(op.inputs[1]))
    size = tuple(_image_shape(low, op)[1:3])
    attrs = _pool_geometry(low, op, size)
    return [from_nhwc(low.b, op, low.b.op("avg_pool_grad", dy, size=size, **attrs))]


def require_known(op: Operation, x: Value, dims: Sequence[Optional[Size]]) -> list[int]:
    """Dimensions of an image, which must be numbers; raises UnsupportedOpError."""
    known = [dim for dim in dims if isinstance(dim, int)]
    if len(known) < len(dims):
        raise UnsupportedOpError(
            f"{op.type}: the image must have a known shape. Received: {x!r}. Set the static shape."
        )
    return known


def _dims(op: Operation, x: Value) -> list[int]:
    return require_known(op, x, x.shape)


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
    """Each offset within a block becomes an image. TensorFlow uses it for dilated convolutions."""
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
    """The inverse of SpaceToBatchND, with cropped borders."""
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
