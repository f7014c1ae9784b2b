"""Reductions over axes, positions of extremes, and running sums and products.

`axes` is a sorted tuple of non-negative numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, of_one_output
from cerebras_tf.ops.inference import normalize_axes, same_as_first
from cerebras_tf.ops.registry import Attrs, Types, element_flops, register
from cerebras_tf.ops.shape import broadcast_as, reshape
from cerebras_tf.ops.sizes import counts


def _reduced_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(x; axes, keepdims)"""
    x = inputs[0]
    axes = normalize_axes(attrs["axes"], x.type.rank)
    if attrs["keepdims"]:
        return [x.type.with_shape(tuple(1 if i in axes else d for i, d in enumerate(x.shape)))]
    return [x.type.with_shape(tuple(d for i, d in enumerate(x.shape) if i not in axes))]


def _position_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(x; axis, dtype)"""
    (axis,) = normalize_axes(attrs["axis"], inputs[0].type.rank)
    dims = tuple(dim for i, dim in enumerate(inputs[0].shape) if i != axis)
    return [TensorType(attrs["dtype"], dims)]


def _operand_flops(node: Node) -> Size:
    return node.inputs[0].type.size


def _keep(b: Builder, node: Node, value: Value) -> Value:
    """A value shaped like the node's output, with the reduced axes as ones."""
    x, axes = node.inputs[0], node.attrs["axes"]
    return reshape(b, value, tuple(1 if i in axes else d for i, d in enumerate(x.shape)))


@of_one_output
def _sum_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [broadcast_as(b, _keep(b, node, dy), node.inputs[0])]


@of_one_output
def _mean_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    x, axes = node.inputs[0], node.attrs["axes"]
    reduced_part = x.type.with_shape(tuple(x.shape[axis] for axis in axes))
    if not reduced_part.is_bounded:
        sizes = b.op("cast", b.op("shape_of", x, dtype="int64"), dtype=dy.dtype)
        parts = [b.op("slice", sizes, starts=(axis,), sizes=(1,), strides=(1,)) for axis in axes]
        reduced = b.op("concat", *parts, axis=0)
        count = b.op("prod", reduced, axes=(0,), keepdims=False)
    else:
        count = counts(b, reduced_part.size, dy.dtype)
    share = b.op("div", dy, count)
    return [broadcast_as(b, _keep(b, node, share), x)]


@of_one_output
def _extreme_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    x, axes = node.inputs[0], node.attrs["axes"]
    hit = b.op("cast", b.op("equal", x, _keep(b, node, node.output)), dtype=x.dtype)
    ties = b.op("sum", hit, axes=axes, keepdims=True)
    return [b.op("mul", b.op("div", hit, ties), _keep(b, node, dy))]


@of_one_output
def _prod_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """The product of all other elements, from running products on both sides."""
    x, axes = node.inputs[0], node.attrs["axes"]
    others = tuple(axis for axis in range(x.type.rank) if axis not in axes)
    order = others + axes
    moved = b.op("transpose", x, permutation=order)
    count = x.type.with_shape(tuple(x.shape[axis] for axis in others)).size
    rows = reshape(b, moved, (count, None))
    before = b.op("cumprod", rows, axis=1, exclusive=True, reverse=False)
    after = b.op("cumprod", rows, axis=1, exclusive=True, reverse=True)
    rest = reshape(b, b.op("mul", before, after), moved.shape)
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    return [b.op("mul", b.op("transpose", rest, permutation=inverse), _keep(b, node, dy))]


@of_one_output
def _cumsum_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """cumsum(x; axis, exclusive, reverse)"""
    attrs = dict(node.attrs, reverse=not node.attrs["reverse"])
    return [b.op("cumsum", dy, **attrs)]


@of_one_output
def _cumprod_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """cumprod(x; axis, exclusive, reverse); not defined where an element of x is zero"""
    attrs = dict(node.attrs, reverse=not node.attrs["reverse"])
    running = b.op("cumsum", b.op("mul", node.output, dy), **attrs)
    return [b.op("div", running, node.inputs[0])]


@of_one_output
def _cumulative_logsumexp_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """cumulative_logsumexp(x; axis, exclusive, reverse): exp(x) times running sums of dy exp(-y).

    These are sums of logarithms, of the positive and the negative parts of dy.
    """
    attrs = dict(node.attrs, reverse=not node.attrs["reverse"])
    (x,), parts = node.inputs, []
    lowest = b.constant(float(np.finfo(x.type.numpy_dtype).min), x.dtype)
    for part in (dy, b.op("neg", dy)):
        logs = b.op("log", b.op("maximum", part, 0.0))
        logs = b.op("select", b.op("greater", part, 0.0), logs, lowest)
        running = b.op("cumulative_logsumexp", b.op("sub", logs, node.output), **attrs)
        parts.append(b.op("exp", b.op("add", running, x)))
    return [b.op("sub", *parts)]


def _sum_of_squares_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """sum_of_squares(x): sum of the squares of all elements, a scalar."""
    return [inputs[0].type.with_shape(())]


def _sum_of_squares_flops(node: Node) -> Size:
    return 2 * node.inputs[0].type.size


for _name, _vjp in (("sum", _sum_vjp), ("mean", _mean_vjp)):
    register(
        _name,
        _reduced_infer,
        _vjp,
        rows=rows.reduction,
        zeros=(0,),
        linear=((0,),),
        cheap=True,
        flops=_operand_flops,
    )
for _name in ("max", "min"):
    register(
        _name, _reduced_infer, _extreme_vjp, rows=rows.reduction, cheap=True, flops=_operand_flops
    )
register("prod", _reduced_infer, _prod_vjp, rows=rows.reduction, flops=_operand_flops)
for _name in ("all", "any"):
    register(
        _name,
        _reduced_infer,
        rows=rows.reduction,
        cheap=True,
        differentiable=False,
        flops=_operand_flops,
    )
for _name in ("argmax", "argmin"):
    register(
        _name, _position_infer, rows=rows.reduction, differentiable=False, flops=_operand_flops
    )
register("cumsum", same_as_first, _cumsum_vjp, rows=rows.reduction, flops=element_flops(1))
register(
    "cumulative_logsumexp",
    same_as_first,
    _cumulative_logsumexp_vjp,
    rows=rows.reduction,
    flops=element_flops(20),
)
register("cumprod", same_as_first, _cumprod_vjp, rows=rows.reduction, flops=element_flops(1))
register(
    "sum_of_squares",
    _sum_of_squares_infer,
    rows=rows.whole_sum,
    differentiable=False,
    flops=_sum_of_squares_flops,
)
