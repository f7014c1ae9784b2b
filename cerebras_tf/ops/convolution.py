"""Two-dimensional convolutions, plain and depthwise, and their adjoints.

Convolution is bilinear, so each of the three products is the others' gradient. The layout is NHWC,
and padding is explicit.

Legend: N images, H W their size, C channels in, K channels out, R S filter size, M filters a
channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Shape, Size, Value
from cerebras_tf.ir.dimensions import ensure_at_most
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, of_one_output
from cerebras_tf.ops.registry import Attrs, Types, register

# ((top, bottom), (left, right))
Padding = tuple[tuple[int, int], tuple[int, int]]


def window_counts(
    size: Shape,
    window: Sequence[Optional[Size]],
    strides: Sequence[int],
    padding: Padding,
    dilations: Sequence[int],
) -> Shape:
    """Positions of a window over an image: (height, width).

    Raises:
        GraphError: the window is larger than the padded image, or the count of its positions is
            not a polynomial of the image's symbolic size.
    """
    counts: list[Optional[Size]] = []
    for dim, span, stride, (before, after), dilation in zip(
        size, window, strides, padding, dilations
    ):
        if dim is None or span is None:
            counts.append(None)
            continue
        last = dim + before + after - (span - 1) * dilation - 1
        if not ensure_at_most(0, last):
            raise GraphError(
                f"convolution: the window must fit the padded image. Received: {tuple(window)} on "
                f"{size} with padding {padding}. Use a smaller window or padding SAME."
            )
        counts.append(last // stride + 1)
    return tuple(counts)


def _conv2d_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """conv2d(x [N,H,W,C], w [R,S,C,K]; strides, padding, dilations) -> [N,H',W',K]"""
    x, w = inputs
    _require_channels(x, w)
    counts = window_counts(x.shape[1:3], w.shape[:2], **attrs)
    return [x.type.with_shape((x.shape[0], *counts, w.shape[3]))]


def _depthwise_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """depthwise_conv2d(x [N,H,W,C], w [R,S,C,M]; ...) -> [N,H',W',C M]"""
    x, w = inputs
    _require_channels(x, w)
    counts = window_counts(x.shape[1:3], w.shape[:2], **attrs)
    return [x.type.with_shape((x.shape[0], *counts, (w.shape[2] or 0) * (w.shape[3] or 0)))]


def _require_channels(x: Value, w: Value) -> None:
    if x.type.rank != 4 or w.type.rank != 4 or x.shape[3] != w.shape[2] or x.dtype != w.dtype:
        raise GraphError(
            f"convolution: operands must be [N,H,W,C] and [R,S,C,K] of one dtype. "
            f"Received: {x!r}, {w!r}. Transpose or cast them."
        )


def _input_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(w, dy; size (H, W), strides, padding, dilations): cotangent of x"""
    w, dy = inputs
    return [dy.type.with_shape((dy.shape[0], *attrs["size"], w.shape[2]))]


def _filter_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(x, dy; window (R, S), strides, padding, dilations): cotangent of w [R,S,C,K]"""
    x, dy = inputs
    return [x.type.with_shape((*attrs["window"], x.shape[3], dy.shape[3]))]


def _depthwise_filter_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(x, dy; window (R, S), strides, padding, dilations): cotangent of w [R,S,C,M]"""
    x, dy = inputs
    channels = x.shape[3] or 1
    return [x.type.with_shape((*attrs["window"], channels, (dy.shape[3] or 0) // channels))]


def _geometry(node: Node) -> Attrs:
    return {key: node.attrs[key] for key in ("strides", "padding", "dilations")}


def _register_products(prefix: str, infer: Any, filter_infer: Any) -> None:
    """Registers a convolution and its two adjoints under prefix, _input_grad, _filter_grad."""

    @of_one_output
    def vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
        x, w = node.inputs
        dx = b.op(f"{prefix}_input_grad", w, dy, size=x.shape[1:3], **_geometry(node))
        dw = b.op(f"{prefix}_filter_grad", x, dy, window=w.shape[:2], **_geometry(node))
        return [dx, dw]

    @of_one_output
    def input_grad_vjp(b: Builder, node: Node, ddx: Value) -> Cotangents:
        w, dy = node.inputs
        dw = b.op(f"{prefix}_filter_grad", ddx, dy, window=w.shape[:2], **_geometry(node))
        return [dw, b.op(prefix, ddx, w, **_geometry(node))]

    @of_one_output
    def filter_grad_vjp(b: Builder, node: Node, ddw: Value) -> Cotangents:
        x, dy = node.inputs
        dx = b.op(f"{prefix}_input_grad", ddw, dy, size=x.shape[1:3], **_geometry(node))
        return [dx, b.op(prefix, x, ddw, **_geometry(node))]

    register(prefix, infer, vjp, rows=rows.leading(0, keep=3), flops=_product_flops)
    register(
        f"{prefix}_input_grad",
        _input_grad_infer,
        input_grad_vjp,
        rows=rows.leading(1, keep=3),
        flops=_product_flops,
    )
    register(
        f"{prefix}_filter_grad",
        filter_infer,
        filter_grad_vjp,
        rows=rows.row_sum(0, 1, keep=3),
        flops=_product_flops,
    )


def _product_flops(node: Node) -> Size:
    """Two for every pair of elements of dy and of the filter that are multiplied."""
    kinds = {"input_grad": (0, 1), "filter_grad": (-1, 1)}
    name = node.op.partition("conv2d_")[2]
    which, cotangent = kinds.get(name, (1, -1))
    dy = node.output if cotangent < 0 else node.inputs[cotangent]
    w = node.output if which < 0 else node.inputs[which]
    taps = w.shape[:2] if node.op.startswith("depthwise") else w.shape[:3]
    return 2 * dy.type.size * w.type.with_shape(taps).size


_register_products("conv2d", _conv2d_infer, _filter_grad_infer)
_register_products("depthwise_conv2d", _depthwise_infer, _depthwise_filter_grad_infer)
