"""Lowerings of TensorFlow's convolutions.

Layouts become NHWC and padding explicit here; grouped convolutions become one convolution a group.
Pooling lives in pooling, which uses the same geometry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, sizes
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Size, Value, most_of
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.convolution import Padding
from cerebras_tf.ops.slicing import cut

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def is_nchw(op: Operation) -> bool:
    """Whether the operation's images are [N,C,H,W]. Raises UnsupportedOpError on other layouts."""
    layout = op.get_attr("data_format").decode()
    if layout not in ("NHWC", "NCHW"):
        raise UnsupportedOpError(
            f"{op.type}: data_format must be NHWC or NCHW. Received: {layout}. Transpose."
        )
    return bool(layout == "NCHW")


def to_nhwc(b: Builder, op: Operation, image: Value) -> Value:
    """The image as [N,H,W,C]."""
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
            f"{op.type}: batch and channels must be taken one by one. Received: {given}. "
            "Reshape and reduce instead."
        )
    return given[height], given[width]


def explicit_padding(
    op: Operation, size: Shape, window: Shape, strides: tuple[int, int], dilations: tuple[int, int]
) -> Padding:
    """((top, bottom), (left, right)); SAME puts the odd one behind, as TensorFlow does.

    Raises:
        UnsupportedOpError: the image's size is unknown.
        GraphError: the padding differs from batch to batch.
    """
    scheme = op.get_attr("padding").decode()
    if scheme == "EXPLICIT":
        given = [int(number) for number in op.get_attr("explicit_paddings")]
        at = 4 if is_nchw(op) else 2
        return (given[at], given[at + 1]), (given[at + 2], given[at + 3])
    if scheme == "VALID":
        return (0, 0), (0, 0)
    sides = []
    for dim, span, stride, dilation in zip(size, window, strides, dilations):
        if dim is None or not isinstance(span, int):
            raise UnsupportedOpError(
                f"{op.type}: padding SAME needs a known image size. Received: {tuple(size)}. "
                "Set the static shape."
            )
        # A symbolic size must divide, or the padding would differ from batch to batch.
        rest = most_of(dim - dim // stride * stride)
        total = max((span - 1) * dilation + 1 - (rest or stride), 0)
        sides.append((total // 2, total - total // 2))
    return sides[0], sides[1]


def _geometry(op: Operation, size: Shape, window: Shape) -> dict[str, object]:
    strides = spatial(op, op.get_attr("strides"))
    dilations = spatial(op, op.get_attr("dilations"))
    padding = explicit_padding(op, size, window, strides, dilations)
    return {"strides": strides, "dilations": dilations, "padding": padding}


def _image_shape(low: Lowering, op: Operation) -> list[Size]:
    """[N,H,W,C] from the operand that holds the shape of an image in the op's layout."""
    shape = sizes(low, op.inputs[0], "the shape of the image")
    return [shape[axis] for axis in _TO_NHWC] if is_nchw(op) else shape


@lowers("Conv2D")
def _conv2d(low: Lowering, op: Operation) -> Sequence[Value]:
    x, w = low.inputs(op)
    x = to_nhwc(low.b, op, x)
    attrs = _geometry(op, x.shape[1:3], w.shape[:2])
    groups = _group_count(x.shape[3], w.shape[2])
    parts = [
        low.b.op("conv2d", part, filters, **attrs)
        for part, filters in zip(_groups(low.b, x, groups), _groups(low.b, w, groups))
    ]
    return [from_nhwc(low.b, op, _join(low.b, parts, 3))]


def _group_count(channels: Optional[Size], taken: Optional[Size]) -> int:
    """Groups of a convolution whose filters take some of the image's channels."""
    if not isinstance(channels, int) or not isinstance(taken, int):
        raise UnsupportedOpError(
            f"convolution: the number of channels must be known. Received: {channels} of which "
            f"filters take {taken}. Set the static shape."
        )
    return channels // taken


def _groups(b: Builder, value: Value, groups: int) -> list[Value]:
    size = (value.shape[3] or 0) // groups
    return [cut(b, value, 3, i * size, size) for i in range(groups)]


def _join(b: Builder, parts: list[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else b.op("concat", *parts, axis=axis)


@lowers("Conv2DBackpropInput")
def _conv2d_input_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    shape = _image_shape(low, op)
    w, dy = low.value(op.inputs[1]), to_nhwc(low.b, op, low.value(op.inputs[2]))
    attrs = dict(_geometry(op, tuple(shape[1:3]), w.shape[:2]), size=tuple(shape[1:3]))
    groups = _group_count(shape[3], w.shape[2])
    parts = [
        low.b.op("conv2d_input_grad", filters, part, **attrs)
        for filters, part in zip(_groups(low.b, w, groups), _groups(low.b, dy, groups))
    ]
    return [from_nhwc(low.b, op, _join(low.b, parts, 3))]


@lowers("Conv2DBackpropFilter")
def _conv2d_filter_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    x, dy = (to_nhwc(low.b, op, low.value(op.inputs[i])) for i in (0, 2))
    shape = integers(low, op.inputs[1], "the shape of the filter")
    window = (shape[0], shape[1])
    attrs = dict(_geometry(op, x.shape[1:3], window), window=window)
    groups = _group_count(x.shape[3], shape[2])
    parts = [
        low.b.op("conv2d_filter_grad", image, part, **attrs)
        for image, part in zip(_groups(low.b, x, groups), _groups(low.b, dy, groups))
    ]
    return [_join(low.b, parts, 3)]


@lowers("DepthwiseConv2dNative")
def _depthwise(low: Lowering, op: Operation) -> Sequence[Value]:
    x, w = low.inputs(op)
    x = to_nhwc(low.b, op, x)
    attrs = _geometry(op, x.shape[1:3], w.shape[:2])
    return [from_nhwc(low.b, op, low.b.op("depthwise_conv2d", x, w, **attrs))]


@lowers("DepthwiseConv2dNativeBackpropInput")
def _depthwise_input_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    size = tuple(_image_shape(low, op)[1:3])
    w, dy = low.value(op.inputs[1]), to_nhwc(low.b, op, low.value(op.inputs[2]))
    attrs = dict(_geometry(op, size, w.shape[:2]), size=size)
    return [from_nhwc(low.b, op, low.b.op("depthwise_conv2d_input_grad", w, dy, **attrs))]


@lowers("DepthwiseConv2dNativeBackpropFilter")
def _depthwise_filter_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    x, dy = (to_nhwc(low.b, op, low.value(op.inputs[i])) for i in (0, 2))
    window = tuple(integers(low, op.inputs[1], "the shape of the filter")[:2])
    attrs = dict(_geometry(op, x.shape[1:3], window), window=window)
    return [low.b.op("depthwise_conv2d_filter_grad", x, dy, **attrs)]
