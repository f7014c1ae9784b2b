"""Shape ops: the same elements in another shape, order or number of copies.

Sizes in attributes are numbers or Dims. The `_dynamic` forms take a shape as an operand, for
results whose size depends on data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

import numpy as np

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Node, Shape, Size, TensorType, Value
from cerebras_tf.ir.dimensions import smaller, whole
from cerebras_tf.ir.types import ITEM_BYTES
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, of_one_output, sum_to
from cerebras_tf.ops.inference import broadcast_shapes, normalize_axes, same_as_first
from cerebras_tf.ops.registry import Attrs, Types, element_flops, register
from cerebras_tf.ops.sizes import counted


def reshape(b: Builder, x: Value, shape: Shape) -> Value:
    """Emits `x` in another shape, of which one dimension may be unknown (None)."""
    if x.shape == tuple(shape):
        return x
    if sum(dim is None for dim in shape) > 1:
        raise UnsupportedOpError(
            f"reshape: at most one dimension may depend on data. Received: {x!r} to {shape}. "
            "Reshape by steps of one unknown dimension."
        )
    target: Shape = tuple(-1 if dim is None else whole(dim) for dim in shape)
    if x.type.is_bounded:  # the size of -1 is known
        (kind,) = _reshape_infer([x], {"shape": target})
        target = kind.shape
    return b.op("reshape", x, shape=target)


def broadcast_as(b: Builder, x: Value, like: Value) -> Value:
    """Emits `x` broadcast to the shape of `like`."""
    if like.type.is_bounded:
        return x if x.shape == like.shape else b.op("broadcast_to", x, shape=like.shape)
    target = b.op("shape_of", like, dtype="int64")
    return b.op("broadcast_dynamic", x, target, shape=like.shape)


def zeros_like(b: Builder, x: Value) -> Value:
    """Emits zeros of the type of `x`."""
    return broadcast_as(b, b.constant(0, x.dtype), x)


def diagonal(b: Builder, rows: Size, columns: Size) -> Value:
    """Emits bool [rows, columns]: whether an element is on the main diagonal."""
    if isinstance(rows, int) and isinstance(columns, int):
        return b.constant(np.eye(rows, columns, dtype=bool))
    down, across = counted(b, rows, 1, "int64"), counted(b, columns, 1, "int64")
    return b.op("equal", b.op("reshape", down, shape=(rows, 1)), across)


def _constant_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """constant(; value, dtype)"""
    return [TensorType(attrs["dtype"], np.shape(attrs["value"]))]


def _reshape_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """reshape(x; shape), where one dimension of shape may be -1"""
    x, target = inputs[0], tuple(attrs["shape"])
    known: Size = math.prod(dim for dim in target if dim != -1)
    wild = target.count(-1)
    size = x.type.size if x.type.is_bounded else None
    dim: Optional[Size] = None
    if size is not None and wild:
        dim = size // known if known != 0 else 0
        known = known * dim
    if wild > 1 or (size is not None and known != size):
        raise GraphError(
            "reshape: shape must contain as many elements as the operand, one -1 at most. "
            f"Received: {x!r} to {target}. Correct the shape."
        )
    return [x.type.with_shape(tuple(dim if d == -1 else d for d in target))]


def _restore(b: Builder, dy: Value, x: Value) -> Value:
    """`dy` in the shape of `x`."""
    if x.shape.count(None) <= 1:
        return reshape(b, dy, x.shape)
    target = b.op("shape_of", x, dtype="int64")
    return b.op("reshape_dynamic", dy, target, shape=x.shape)


@of_one_output
def _reshape_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [_restore(b, dy, node.inputs[0])]


def _sized_by_operand(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(x, target; shape): shape is what is known of target, None where it is not"""
    target = inputs[1]
    if target.shape != (len(attrs["shape"]),):
        raise GraphError(
            f"dynamic shape: the operand must contain {len(attrs['shape'])} numbers. Received: "
            f"{target!r}. Correct the shape."
        )
    return [inputs[0].type.with_shape(attrs["shape"])]


@of_one_output
def _reshape_dynamic_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [_restore(b, dy, node.inputs[0]), None]


def _transpose_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """transpose(x; permutation)"""
    x, permutation = inputs[0], attrs["permutation"]
    if sorted(permutation) != list(range(x.type.rank)):
        raise GraphError(
            f"transpose: permutation must order the operand's axes. "
            f"Received: {permutation} for {x!r}. Correct it."
        )
    return [x.type.with_shape(tuple(x.shape[axis] for axis in permutation))]


@of_one_output
def _transpose_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    permutation = node.attrs["permutation"]
    inverse = tuple(permutation.index(axis) for axis in range(len(permutation)))
    return [b.op("transpose", dy, permutation=inverse)]


def _broadcast_to_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """broadcast_to(x; shape)"""
    shape = tuple(attrs["shape"])
    broadcast_shapes([inputs[0].shape, shape])
    return [inputs[0].type.with_shape(shape)]


@of_one_output
def _broadcast_to_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [sum_to(b, dy, node.inputs[0])]


@of_one_output
def _broadcast_dynamic_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [sum_to(b, dy, node.inputs[0]), None]


def _sum_to_like_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """sum_to_like(dy, like): dy summed over the axes along which like was broadcast"""
    return [inputs[0].type.with_shape(inputs[1].shape)]


@of_one_output
def _sum_to_like_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [broadcast_as(b, dy, node.inputs[0]), None]


def _tile_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """tile(x; multiples)"""
    x, multiples = inputs[0], attrs["multiples"]
    dims = [None if d is None else d * m for d, m in zip(x.shape, multiples)]
    return [x.type.with_shape(tuple(dims))]


@of_one_output
def _tile_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    x, multiples = node.inputs[0], node.attrs["multiples"]
    split: list[Optional[Size]] = []
    for dim, multiple in zip(x.shape, multiples):
        split += [multiple, dim]
    copies = tuple(2 * axis for axis, multiple in enumerate(multiples) if multiple != 1)
    parts = reshape(b, dy, tuple(split))
    total = b.op("sum", parts, axes=copies, keepdims=False) if copies else parts
    return [reshape(b, total, x.shape)]


def _shape_of_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """shape_of(x; dtype)"""
    return [TensorType(attrs["dtype"], (inputs[0].type.rank,))]


def _range_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """range(start, limit, delta): start, start + delta, ... before limit"""
    return [TensorType(inputs[0].dtype, (None,))]


def _bitcast_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """bitcast(x; dtype): the same bits; elements are split along a new axis, or joined"""
    x = inputs[0]
    wide, narrow = ITEM_BYTES[x.dtype], ITEM_BYTES[attrs["dtype"]]
    if "bfloat16" in (x.dtype, attrs["dtype"]):
        raise GraphError(f"bitcast: not of bfloat16. Received: {x!r}. Cast it.")
    shape = x.shape
    if wide > narrow:
        shape = (*shape, wide // narrow)
    elif wide < narrow:
        shape = shape[:-1]
    return [TensorType(attrs["dtype"], shape)]


def _one_hot_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """one_hot(indices; depth, axis, on_value, off_value, dtype)"""
    dims = list(inputs[0].shape)
    (axis,) = normalize_axes(attrs["axis"], len(dims) + 1)
    dims.insert(axis, whole(attrs["depth"]))
    return [TensorType(attrs["dtype"], tuple(dims))]


@of_one_output
def _band_part_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """band_part(x; lower, upper): zero more than lower below or upper above the diagonal"""
    return [b.op("band_part", dy, **node.attrs)]


def _diag_part_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """diag_part(x): main diagonals of the matrices in the last two axes"""
    *batch, rows, columns = inputs[0].shape
    length = None if rows is None or columns is None else smaller(rows, columns)
    return [inputs[0].type.with_shape((*batch, length))]


@of_one_output
def _diag_part_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    rows, columns = node.inputs[0].shape[-2:]
    length = dy.shape[-1]
    if rows is None or columns is None or length is None:
        raise UnsupportedOpError(
            f"gradient of diag_part: matrices must have a known size. Received: {node!r}. "
            "Set the static shape."
        )
    column = reshape(b, dy, (*dy.shape, 1))
    square = b.op("select", diagonal(b, length, columns), column, b.constant(0, dy.dtype))
    missing = rows - length
    if missing == 0:
        return [square]
    paddings = ((0, 0),) * (len(dy.shape) - 1) + ((0, missing), (0, 0))
    return [b.op("pad", square, paddings=paddings, value=0)]


_free = element_flops(0)
register(
    "constant", _constant_infer, rows=rows.across, cheap=True, differentiable=False, flops=_free
)
register(
    "reshape",
    _reshape_infer,
    _reshape_vjp,
    rows=rows.reshape,
    zeros=(0,),
    linear=((0,),),
    cheap=True,
    view=True,
    flops=_free,
)
register(
    "reshape_dynamic",
    _sized_by_operand,
    _reshape_dynamic_vjp,
    rows=rows.across,
    view=True,
    flops=_free,
)
register(
    "transpose",
    _transpose_infer,
    _transpose_vjp,
    rows=rows.transpose,
    zeros=(0,),
    linear=((0,),),
    flops=_free,
)
register(
    "broadcast_to",
    _broadcast_to_infer,
    _broadcast_to_vjp,
    rows=rows.elementwise,
    repeats=True,
    zeros=(0,),
    linear=((0,),),
    cheap=True,
    flops=_free,
)
register(
    "broadcast_dynamic", _sized_by_operand, _broadcast_dynamic_vjp, rows=rows.across, flops=_free
)
register(
    "sum_to_like", _sum_to_like_infer, _sum_to_like_vjp, rows=rows.across, flops=element_flops(1)
)
register("tile", _tile_infer, _tile_vjp, rows=rows.reshape, flops=_free)
register("shape_of", _shape_of_infer, rows=rows.across, differentiable=False, flops=_free)
register("range", _range_infer, rows=rows.across, differentiable=False, flops=element_flops(1))
register("bitcast", _bitcast_infer, rows=rows.across, differentiable=False, flops=_free)
register("one_hot", _one_hot_infer, rows=rows.one_hot, differentiable=False, flops=_free)
register("band_part", same_as_first, _band_part_vjp, rows=rows.leading(0, keep=2), flops=_free)
register("diag_part", _diag_part_infer, _diag_part_vjp, rows=rows.leading(0, keep=2), flops=_free)
