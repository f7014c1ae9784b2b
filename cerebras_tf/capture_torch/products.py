"""Rules of matrix products, convolutions, pooling and embeddings.

Images are [N, C, H, W] in torch and [N, H, W, C] in the IR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from cerebras_tf.capture_torch import shapes
from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.capture_torch.shapes import transposed
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, Value
from cerebras_tf.ops import Builder
from cerebras_tf.ops.inference import broadcast_shapes
from cerebras_tf.ops.shape import reshape
from cerebras_tf.ops.slicing import cut


def _product(low: Lowering, x: Value, y: Value, transpose_b: bool = False) -> Value:
    return low.b.op("matmul", x, y, transpose_a=False, transpose_b=transpose_b)


@lowers("linear")
def _linear(low: Lowering, x: Value, weight: Value, bias: Optional[Value]) -> Value:
    """x [..., H] weight^T [H, K] + bias [K]"""
    rows = x if x.type.rank == 2 else reshape(low.b, x, (None, x.shape[-1]))
    result = _product(low, rows, weight, transpose_b=True)
    if bias is not None:
        result = low.b.op("add", result, bias)
    return reshape(low.b, result, low.shape)


@lowers("addmm")
def _addmm(low: Lowering, x: Value, mat1: Value, mat2: Value, beta: float, alpha: float) -> Value:
    result = _product(low, mat1, mat2)
    if alpha != 1:
        result = low.b.op("mul", result, low.value(alpha))
    return low.b.op("add", result, x if beta == 1 else low.b.op("mul", x, low.value(beta)))


@lowers("mm", "bmm")
def _mm(low: Lowering, x: Value, mat2: Value) -> Value:
    return _product(low, x, mat2)


@lowers("mv")
def _mv(low: Lowering, x: Value, vec: Value) -> Value:
    column = reshape(low.b, vec, (*vec.shape, 1))
    return reshape(low.b, _product(low, x, column), low.shape)


@lowers("dot")
def _dot(low: Lowering, x: Value, tensor: Value) -> Value:
    return low.b.op("sum", low.b.op("mul", x, tensor), axes=(0,), keepdims=False)


@lowers("vdot")
def _vdot(low: Lowering, x: Value, other: Value) -> Value:
    return _dot(low, x, other)


@lowers("matmul")
def _matmul(low: Lowering, x: Value, other: Value) -> Value:
    if min(x.type.rank, other.type.rank) < 2:
        left = reshape(low.b, x, (1, *x.shape)) if x.type.rank == 1 else x
        right = reshape(low.b, other, (*other.shape, 1)) if other.type.rank == 1 else other
        return reshape(low.b, _batched(low, left, right), low.shape)
    return _batched(low, x, other)


def _batched(low: Lowering, x: Value, other: Value) -> Value:
    if other.type.rank == 2 and x.type.rank > 2:
        rows = _product(low, reshape(low.b, x, (None, x.shape[-1])), other)
        return reshape(low.b, rows, (*x.shape[:-1], other.shape[1]))
    batch = broadcast_shapes([x.shape[:-2], other.shape[:-2]])

    def expanded(value: Value) -> Value:
        shape = (*batch, *value.shape[-2:])
        return value if value.shape == shape else low.b.op("broadcast_to", value, shape=shape)

    return _product(low, expanded(x), expanded(other))


@lowers("embedding")
def _embedding(
    low: Lowering, weight: Value, indices: Value, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    """Rows of a table. The row of padding_idx receives no gradient."""
    b = low.b
    rows = b.op("gather", weight, indices, axis=0, batch_dims=0)
    if scale_grad_by_freq:
        rows = _divided_by_frequency(low, rows, indices, weight.shape[0])
    if padding_idx < 0:
        return rows
    is_padding = b.op("equal", indices, b.constant(padding_idx, indices.dtype))
    column = reshape(b, is_padding, (*indices.shape, 1))
    return b.op("select", column, b.op("stop_gradient", rows), rows)


def _divided_by_frequency(low: Lowering, rows: Value, indices: Value, count: Any) -> Value:
    """The rows; the gradient of each is divided by how often the batch has its index."""
    b, flat = low.b, reshape(low.b, indices, (None,))
    ones = b.op("broadcast_to", b.constant(1.0, rows.dtype), shape=flat.shape)
    counts = b.op("unsorted_segment_sum", ones, flat, b.constant(count, "int32"))
    divisors = b.op("gather", counts, indices, axis=0, batch_dims=0)
    column = reshape(b, divisors, (*indices.shape, 1))
    backward = Graph("embedding_backward")
    given = backward.add_input("divisors", column.type), backward.add_input("seed", rows.type)
    backward.outputs = [Builder(backward, b.evaluate).op("div", given[1], given[0])]
    attrs = {"xs": 1, "backward": backward, "gives": (0,)}
    return b.multi("custom_gradient", rows, column, **attrs)[0]


def _nhwc(low: Lowering, x: Value) -> Value:
    return transposed(low, x, (0, 2, 3, 1))


def _nchw(low: Lowering, x: Value) -> Value:
    return transposed(low, x, (0, 3, 1, 2))


def _pair(value: Any) -> tuple[int, int]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return items[0], items[-1]


def _around(padding: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    vertical, horizontal = _pair(padding)
    return (vertical, vertical), (horizontal, horizontal)


@lowers("conv2d")
def _conv2d(
    low: Lowering,
    x: Value,
    weight: Value,
    bias: Optional[Value],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Value:
    """x [N, C, H, W], weight [K, C / groups, R, S]"""
    attrs = {"strides": _pair(stride), "padding": _around(padding), "dilations": _pair(dilation)}
    images = _nhwc(low, x)
    if groups == x.shape[1] and groups > 1:
        outputs, _, *window = weight.shape
        filters = transposed(low, weight, (2, 3, 1, 0))
        filters = reshape(low.b, filters, (*window, groups, (outputs or 0) // groups))
        result = low.b.op("depthwise_conv2d", images, filters, **attrs)
    else:

        def product(part: Value, filters: Value) -> Value:
            return low.b.op("conv2d", part, transposed(low, filters, (2, 3, 1, 0)), **attrs)

        result = _grouped(low, images, weight, groups, product)
    if bias is not None:
        result = low.b.op("add", result, bias)
    return _nchw(low, result)


def _grouped(
    low: Lowering,
    images: Value,
    weight: Value,
    groups: int,
    product: Callable[[Value, Value], Value],
) -> Value:
    """Groups of channels [N, H, W, C], each with its filters, concatenated."""
    if groups == 1:
        return product(images, weight)
    whole: Any = images.shape[3], weight.shape[0]
    channels, filters = (size // groups for size in whole)
    parts = [
        product(
            cut(low.b, images, 3, i * channels, channels),
            cut(low.b, weight, 0, i * filters, filters),
        )
        for i in range(groups)
    ]
    return low.b.op("concat", *parts, axis=3)


@lowers("convolution")
def _convolution(
    low: Lowering,
    x: Value,
    weight: Value,
    bias: Optional[Value],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """In one or two dimensions, plain or transposed."""
    b, shape = low.b, low.shape
    if x.type.rank > 4:
        raise UnsupportedOpError(
            f"convolution: must have at most 2 dimensions. Received: {x.type.rank - 2}. Use 2-D "
            "convolutions of the slices."
        )
    if x.type.rank == 3:  # as images of height 1
        x = reshape(b, x, (*x.shape[:2], 1, x.shape[2]))
        weight = reshape(b, weight, (*weight.shape[:2], 1, weight.shape[2]))
        stride, dilation, padding = (1, *stride), (1, *dilation), (0, *padding)
    if not transposed:
        found = _conv2d(low, x, weight, bias, stride, padding, dilation, groups)
        return reshape(b, found, shape)
    size = (1, *shape[2:])[-2:]
    attrs = {"strides": _pair(stride), "padding": _around(padding), "dilations": _pair(dilation)}

    def product(part: Value, filters: Value) -> Value:
        """filters [C / groups, K / groups, R, S]"""
        turned = shapes.transposed(low, filters, (2, 3, 1, 0))
        return b.op("conv2d_input_grad", turned, part, size=size, **attrs)

    result = _grouped(low, _nhwc(low, x), weight, groups, product)
    if bias is not None:
        result = b.op("add", result, bias)
    return reshape(b, _nchw(low, result), shape)


@lowers("max_pool2d")
def _max_pool2d(low: Lowering, x: Value, kernel_size: Any, stride: Any, padding: Any) -> Value:
    return _nchw(low, low.b.op("max_pool", _nhwc(low, x), **_windows(kernel_size, stride, padding)))


@lowers("max_pool2d_with_indices")
def _max_pool2d_with_indices(
    low: Lowering, x: Value, kernel_size: Any, stride: Any, padding: Any
) -> tuple[Any, ...]:
    _refuse_positions(low)
    return _images(low, x, lambda y: _max_pool2d(low, y, kernel_size, stride, padding)), None


def _refuse_positions(low: Lowering) -> None:
    """Refuses a max pooling whose second result is used."""
    if any(user.args[1] == 1 and user.users for user in low.node.users):
        raise UnsupportedOpError(
            f"{low.node.target}: return_indices must be False. Received: a use of the indices."
        )


def _images(low: Lowering, x: Value, function: Callable[[Value], Value]) -> Value:
    """A function of [N, C, H, W] on images that may lack the first axis."""
    if x.type.rank == 4:
        return function(x)
    return reshape(low.b, function(reshape(low.b, x, (1, *x.shape))), low.shape)


@lowers("avg_pool2d")
def _avg_pool2d(
    low: Lowering, x: Value, kernel_size: Any, stride: Any, padding: Any, count_include_pad: bool
) -> Value:
    if count_include_pad and any(_pair(padding)):
        around = ((0, 0),) * (x.type.rank - 2) + _around(padding)
        x, padding = low.b.op("pad", x, paddings=around, value=0), 0
    windows = _windows(kernel_size, stride, padding)
    return _images(low, x, lambda y: _nchw(low, low.b.op("avg_pool", _nhwc(low, y), **windows)))


def _windows(kernel_size: Any, stride: Any, padding: Any) -> dict[str, Any]:
    return {
        "window": _pair(kernel_size),
        "strides": _pair(stride or kernel_size),
        "padding": _around(padding),
    }


@lowers("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _adaptive_avg_pool2d(low: Lowering, x: Value, output_size: Sequence[int]) -> Value:
    """Means over bins, as products with a matrix for each axis."""
    axes = (x.type.rank - 2, x.type.rank - 1)
    if list(low.shape[-2:]) == [1, 1]:
        return low.b.op("mean", x, axes=axes, keepdims=True)
    for axis in axes:
        size, count = x.shape[axis], low.shape[axis]
        if size == count:
            continue
        if not isinstance(size, int) or not isinstance(count, int):
            raise UnsupportedOpError(
                f"adaptive_avg_pool2d: sizes must be fixed. Received: {size} to {count}. Use an "
                "output_size of 1, or images of one size."
            )
        weights = np.zeros((size, count), x.type.numpy_dtype)
        for i in range(count):
            start, end = i * size // count, -(-(i + 1) * size // count)
            weights[start:end, i] = 1 / (end - start)
        order = [*(i for i in range(x.type.rank) if i != axis), axis]
        product = _batched(low, transposed(low, x, order), low.b.constant(weights))
        x = transposed(low, product, [order.index(i) for i in range(len(order))])
    return x


@lowers("adaptive_max_pool2d")
def _adaptive_max_pool2d(low: Lowering, x: Value, output_size: Sequence[int]) -> tuple[Any, ...]:
    _refuse_positions(low)
    sizes, counts = x.shape[-2:], low.shape[-2:]
    pairs = zip(sizes, counts)
    if any(not isinstance(size, int) or size % n for size, n in pairs):  # type: ignore[operator]
        raise UnsupportedOpError(
            "adaptive_max_pool2d: sizes must be fixed multiples of output_size. Received: "
            f"{sizes} to {counts}. Use max_pool2d."
        )
    window = [size // n for size, n in zip(sizes, counts)]  # type: ignore[operator]
    return _images(low, x, lambda y: _max_pool2d(low, y, window, window, 0)), None
