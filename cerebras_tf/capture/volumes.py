"""Lowerings of three-dimensional convolutions and pooling, as two-dimensional ones of planes.

A volume is [N,D,H,W,C]. The planes that a position of the filter reads along the depth are
concatenated along the channels, so a convolution of volumes is one of images. Windows of a pooling
are reduced in each plane first, then along the depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cerebras_tf.capture.image import padding_of, require_known
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, sizes
from cerebras_tf.capture.slicing import concatenated
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Size, Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.convolution import Padding
from cerebras_tf.ops.shape import reshape
from cerebras_tf.ops.slicing import cut

_TO_NDHWC, _TO_NCDHW = (0, 2, 3, 4, 1), (0, 4, 1, 2, 3)


class _Depth(NamedTuple):
    """Positions of a window along the depth."""

    window: int
    stride: int
    dilation: int
    padding: tuple[int, int]

    def count(self, depth: int) -> int:
        """Positions of the window."""
        return (
            depth + sum(self.padding) - (self.window - 1) * self.dilation - 1
        ) // self.stride + 1


def _is_ncdhw(op: Operation) -> bool:
    return bool(op.get_attr("data_format") == b"NCDHW")


def _in(b: Builder, op: Operation, x: Value) -> Value:
    return b.op("transpose", x, permutation=_TO_NDHWC) if _is_ncdhw(op) else x


def _out(b: Builder, op: Operation, x: Value) -> Value:
    return b.op("transpose", x, permutation=_TO_NCDHW) if _is_ncdhw(op) else x


def _along_space(op: Operation, name: str) -> list[int]:
    numbers = [int(number) for number in op.get_attr(name)]
    space = numbers[2:] if _is_ncdhw(op) else numbers[1:4]
    if math.prod(numbers) != math.prod(space):
        raise UnsupportedOpError(
            f"{op.type}: {name} must be 1 in batch and channels. Received: {numbers}. Reshape and "
            "reduce instead."
        )
    return space


def _geometry(
    op: Operation, size: Sequence[int], window: Sequence[int], dilations: Sequence[int]
) -> tuple[_Depth, tuple[int, int], Padding]:
    """Along the depth; strides and padding of the planes."""
    strides = _along_space(op, "strides")
    padding = padding_of(op, tuple(size), tuple(window), strides, dilations)
    depth = _Depth(window[0], strides[0], dilations[0], padding[0])
    return depth, (strides[1], strides[2]), (padding[1], padding[2])


def _planes(b: Builder, x: Value, dim: int, depth: _Depth) -> Value:
    """[N,D',H,W,R C]: the planes of `dim` that each position along the depth reads."""
    if any(depth.padding):
        paddings = ((0, 0), depth.padding, *((0, 0),) * 3)
        x = b.op("pad", x, paddings=paddings, value=0)
    rest = x.shape[2:]
    count = depth.count(dim)
    parts = [
        b.op(
            "slice",
            x,
            starts=(0, r * depth.dilation, 0, 0, 0),
            sizes=(x.shape[0], count, *rest),
            strides=(1, depth.stride, 1, 1, 1),
        )
        for r in range(depth.window)
    ]
    return concatenated(b, parts, 4)


def _images(b: Builder, x: Value) -> Value:
    """[N D,H,W,C]"""
    first = None if x.shape[0] is None or x.shape[1] is None else x.shape[0] * x.shape[1]
    return reshape(b, x, (first, *x.shape[2:]))


def _volumes(b: Builder, images: Value, batch: object, depth: int) -> Value:
    """[N,D,H,W,C] of images [N D,H,W,C]"""
    return reshape(b, images, (batch, depth, *images.shape[1:]))  # type: ignore[arg-type]


def _image_filters(b: Builder, op: Operation, w: Value) -> Value:
    """[S,T,R C,K] of filters [R,S,T,C,K]"""
    r, s, t, c, k = require_known(op, w, w.shape)
    return reshape(b, b.op("transpose", w, permutation=(1, 2, 0, 3, 4)), (s, t, r * c, k))


def _require_one_group(op: Operation, channels: object, taken: object) -> None:
    if channels != taken:
        raise UnsupportedOpError(
            f"{op.type}: filters must read all channels of the volume. Received: {taken} of "
            f"{channels}. Split the channels and convolve the parts."
        )


@lowers("Conv3D")
def _conv3d(low: Lowering, op: Operation) -> Sequence[Value]:
    """x [N,D,H,W,C], w [R,S,T,C,K]"""
    b, (x, w) = low.b, low.inputs(op)
    x = _in(b, op, x)
    _require_one_group(op, x.shape[4], w.shape[3])
    size, window = require_known(op, x, x.shape[1:4]), require_known(op, w, w.shape[:3])
    dilations = _along_space(op, "dilations")
    depth, strides, padding = _geometry(op, size, window, dilations)
    images = _images(b, _planes(b, x, size[0], depth))
    attrs = {"strides": strides, "padding": padding, "dilations": (dilations[1], dilations[2])}
    product = b.op("conv2d", images, _image_filters(b, op, w), **attrs)
    return [_out(b, op, _volumes(b, product, x.shape[0], depth.count(size[0])))]


@lowers("Conv3DBackpropInputV2")
def _conv3d_input_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    """Also the forward op of a transposed convolution."""
    b, w = low.b, low.value(op.inputs[1])
    dy = _in(b, op, low.value(op.inputs[2]))
    shape: list[Size] = sizes(low, op.inputs[0], "the shape of the volume")
    shape = [shape[axis] for axis in _TO_NDHWC] if _is_ncdhw(op) else shape
    _require_one_group(op, shape[4], w.shape[3])
    size, window = require_known(op, dy, shape[1:4]), require_known(op, w, w.shape[:3])
    dilations = _along_space(op, "dilations")
    depth, strides, padding = _geometry(op, size, window, dilations)
    attrs = {"strides": strides, "padding": padding, "dilations": (dilations[1], dilations[2])}
    planes = b.op(
        "conv2d_input_grad", _image_filters(b, op, w), _images(b, dy), size=tuple(size[1:]), **attrs
    )
    parts = _volumes(b, planes, dy.shape[0], depth.count(size[0]))
    (channels,) = require_known(op, w, w.shape[3:4])
    whole = (dy.shape[0], size[0] + sum(depth.padding), *size[1:], channels)
    total = None
    for r in range(depth.window):
        placed = b.op(
            "place",
            cut(b, parts, 4, r * channels, channels),
            shape=whole,
            starts=(0, r * depth.dilation, 0, 0, 0),
            strides=(1, depth.stride, 1, 1, 1),
        )
        total = placed if total is None else b.op("add", total, placed)
    assert total is not None
    return [_out(b, op, cut(b, total, 1, depth.padding[0], size[0]))]


@lowers("Conv3DBackpropFilterV2")
def _conv3d_filter_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    b = low.b
    x, dy = (_in(b, op, low.value(op.inputs[i])) for i in (0, 2))
    r, s, t, c, k = integers(low, op.inputs[1], "the shape of the filter")
    _require_one_group(op, x.shape[4], c)
    dilations = _along_space(op, "dilations")
    size = require_known(op, x, x.shape[1:4])
    depth, strides, padding = _geometry(op, size, (r, s, t), dilations)
    attrs = {"strides": strides, "padding": padding, "dilations": (dilations[1], dilations[2])}
    images = _images(b, _planes(b, x, size[0], depth))
    product = b.op("conv2d_filter_grad", images, _images(b, dy), window=(s, t), **attrs)
    filters = reshape(b, product, (s, t, r, c, k))
    return [b.op("transpose", filters, permutation=(2, 0, 1, 3, 4))]


@lowers("AvgPool3D", "MaxPool3D")
def _pool3d(low: Lowering, op: Operation) -> Sequence[Value]:
    """Padding has the form of a box, so a mean of means counts every element equally."""
    b, x = low.b, _in(low.b, op, low.inputs(op)[0])
    name = "avg_pool" if op.type == "AvgPool3D" else "max_pool"
    size, window = require_known(op, x, x.shape[1:4]), _along_space(op, "ksize")
    depth, strides, padding = _geometry(op, size, window, (1, 1, 1))
    flat = {"window": (window[1], window[2]), "strides": strides, "padding": padding}
    planes = _volumes(b, b.op(name, _images(b, x), **flat), x.shape[0], size[0])
    columns = reshape(
        b, planes, (x.shape[0], size[0], 1, math.prod(require_known(op, planes, planes.shape[2:])))
    )
    deep = {"window": (depth.window, 1), "strides": (depth.stride, 1)}
    pooled = b.op(name, columns, **deep, padding=(depth.padding, (0, 0)))
    return [_out(b, op, reshape(b, pooled, (x.shape[0], pooled.shape[1], *planes.shape[2:])))]
