"""Max and mean pooling over windows of an image, NHWC. Explicit padding is ignored."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebras_tf.ir import Node, Size, Value, bound_of
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.convolution import window_counts
from cerebras_tf.ops.gradients import Cotangents, of_one_output
from cerebras_tf.ops.inference import same_as_first
from cerebras_tf.ops.registry import Attrs, Types, register


def _pool_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(x [N,H,W,C]; window, strides, padding) -> [N,H',W',C]"""
    x = inputs[0]
    counts = window_counts(x.shape[1:3], dilations=(1, 1), **attrs)
    return [x.type.with_shape((x.shape[0], *counts, x.shape[3]))]


def _select_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    return [inputs[1].type.with_dtype(inputs[2].dtype)]


def _avg_pool_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """avg_pool_grad(dy; size (H, W), window, strides, padding): cotangent of x"""
    dy = inputs[0]
    return [dy.type.with_shape((dy.shape[0], *attrs["size"], dy.shape[3]))]


@of_one_output
def _max_pool_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """max_pool(x): the first largest element of a window gets the cotangent"""
    return [b.op("max_pool_grad", node.inputs[0], node.output, dy, **node.attrs)]


@of_one_output
def _max_pool_grad_vjp(b: Builder, node: Node, ddx: Value) -> Cotangents:
    """max_pool_grad(x, y, dy) is linear in dy and constant in the others"""
    x, y, _ = node.inputs
    return [None, None, b.op("max_pool_select", x, y, ddx, **node.attrs)]


@of_one_output
def _max_pool_select_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """max_pool_select(x, y, z): elements of z where x has the first largest of a window"""
    x, y, _ = node.inputs
    return [None, None, b.op("max_pool_grad", x, y, dy, **node.attrs)]


@of_one_output
def _avg_pool_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [b.op("avg_pool_grad", dy, size=node.inputs[0].shape[1:3], **node.attrs)]


@of_one_output
def _avg_pool_grad_vjp(b: Builder, node: Node, ddx: Value) -> Cotangents:
    attrs = {key: value for key, value in node.attrs.items() if key != "size"}
    return [b.op("avg_pool", ddx, **attrs)]


def _flops(node: Node) -> Size:
    """One for every element of every window."""
    positions = min((value.type.size for value in (*node.inputs, node.output)), key=bound_of)
    return positions * int(math.prod(node.attrs["window"]))


register("max_pool", _pool_infer, _max_pool_vjp, rows=rows.leading(0, keep=3), flops=_flops)
register(
    "max_pool_grad",
    same_as_first,
    _max_pool_grad_vjp,
    rows=rows.leading(0, 1, 2, keep=3),
    flops=_flops,
)
register(
    "max_pool_select",
    _select_infer,
    _max_pool_select_vjp,
    rows=rows.leading(0, 1, 2, keep=3),
    flops=_flops,
)
register("avg_pool", _pool_infer, _avg_pool_vjp, rows=rows.leading(0, keep=3), flops=_flops)
register(
    "avg_pool_grad",
    _avg_pool_grad_infer,
    _avg_pool_grad_vjp,
    rows=rows.leading(0, keep=3),
    flops=_flops,
)
