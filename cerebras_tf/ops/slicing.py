"""slice, its adjoint place, pad, concat and reverse, at positions that are attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Node, Size, Value
from cerebras_tf.ir.dimensions import ensure_at_most
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, of_one_output
from cerebras_tf.ops.inference import require_same_dtype, same_as_first
from cerebras_tf.ops.registry import Attrs, Types, element_flops, register


def cut(b: Builder, x: Value, axis: int, start: Size, size: Optional[Size]) -> Value:
    """Emits the slice of `size` elements (None: to the end) from `start` along one axis."""
    if start == 0 and size == x.shape[axis]:
        return x
    rank = x.type.rank
    starts = tuple(start if i == axis else 0 for i in range(rank))
    sizes = tuple(size if i == axis else dim for i, dim in enumerate(x.shape))
    return b.op("slice", x, starts=starts, sizes=sizes, strides=(1,) * rank)


def _stays_inside(dim: Size, start: Size, size: Size, stride: int) -> bool:
    """Whether a slice stays inside an axis for every size; raises SizeLimitError."""
    if size == 0:
        return True
    last = start + (size - 1) * stride
    first, last = (start, last) if stride > 0 else (last, start)
    return ensure_at_most(0, size) and ensure_at_most(0, first) and ensure_at_most(last, dim - 1)


def _slice_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """slice(x; starts, sizes, strides): sizes[i] elements from starts[i] in steps of strides[i].

    A size of None extends to the end of an axis of unknown size.
    """
    x = inputs[0]
    for dim, start, size, stride in zip(x.shape, attrs["starts"], attrs["sizes"], attrs["strides"]):
        if dim is not None and (size is None or not _stays_inside(dim, start, size, stride)):
            raise GraphError(
                f"slice: every axis must stay inside the operand. Received: {x!r}, {attrs}. "
                "Correct starts, sizes and strides."
            )
    return [x.type.with_shape(attrs["sizes"])]


def _is_one_piece(node: Node) -> bool:
    """Whether a slice is contiguous in its operand, and so needs no copy."""
    cut = False  # whether a later axis is cut, so that earlier ones must have size 1
    x = node.inputs[0]
    for dim, size, stride in reversed(
        list(zip(x.shape, node.attrs["sizes"], node.attrs["strides"]))
    ):
        if size == 1:
            cut = cut or dim != 1
            continue
        if cut or stride != 1 or dim is None or size is None:
            return False
        cut = size != dim
    return True


@of_one_output
def _slice_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    x = node.inputs[0]
    starts, strides = node.attrs["starts"], node.attrs["strides"]
    if any(stride != 1 for stride in strides):
        return [b.op("place", dy, shape=x.shape, starts=starts, strides=strides)]
    paddings = []
    for dim, start, size in zip(x.shape, starts, node.attrs["sizes"]):
        if dim is None and size is not None:
            raise UnsupportedOpError(
                f"gradient of slice: an axis of unknown size must be cut to its end. "
                f"Received: {node!r}. Gather the wanted positions."
            )
        after = 0 if dim is None or size is None else dim - start - size
        paddings.append((start, after))
    return [b.op("pad", dy, paddings=tuple(paddings), value=0)]


def _place_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """place(x; shape, starts, strides): zeros of shape, with x where slice would read"""
    return [inputs[0].type.with_shape(attrs["shape"])]


@of_one_output
def _place_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    attrs = {key: node.attrs[key] for key in ("starts", "strides")}
    return [b.op("slice", dy, sizes=node.inputs[0].shape, **attrs)]


def _pad_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """pad(x; paddings, value): paddings is (before, after) for every axis"""
    x = inputs[0]
    if len(attrs["paddings"]) != x.type.rank:
        raise GraphError(
            f"pad: one (before, after) an axis. Received: {attrs['paddings']} for {x!r}. "
            "Correct the paddings."
        )
    pairs = zip(x.shape, attrs["paddings"])
    return [x.type.with_shape(tuple(None if d is None else d + p[0] + p[1] for d, p in pairs))]


@of_one_output
def _pad_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    x = node.inputs[0]
    starts = tuple(before for before, _ in node.attrs["paddings"])
    return [b.op("slice", dy, starts=starts, sizes=x.shape, strides=(1,) * x.type.rank)]


def _concat_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """concat(*xs; axis)"""
    require_same_dtype(inputs)
    axis = attrs["axis"]
    dims = list(inputs[0].shape)
    for other in inputs[1:]:
        for i, dim in enumerate(other.shape):
            mine = dims[i]
            if i == axis:
                dims[i] = None if mine is None or dim is None else mine + dim
            elif mine is None:
                dims[i] = dim
            elif dim is not None and dim != mine:
                raise GraphError(
                    f"concat: operands must agree off axis {axis}. Received: {list(inputs)}. "
                    "Correct the axis."
                )
    return [inputs[0].type.with_shape(tuple(dims))]


@of_one_output
def _concat_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    axis = node.attrs["axis"]
    start: Size = 0
    dxs: Cotangents = []
    for position, x in enumerate(node.inputs):
        dim = x.shape[axis]
        if dim is None and position != len(node.inputs) - 1:
            raise GraphError(
                f"gradient of concat: only the last operand may have an unknown size along axis "
                f"{axis}. Received: {node!r}. Concatenate it last."
            )
        dxs.append(cut(b, dy, axis, start, dim))
        start = start + (0 if dim is None else dim)
    return dxs


@of_one_output
def _reverse_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """reverse(x; axes)"""
    return [b.op("reverse", dy, axes=node.attrs["axes"])]


_free = element_flops(0)
register(
    "slice",
    _slice_infer,
    _slice_vjp,
    rows=rows.slicing,
    zeros=(0,),
    linear=((0,),),
    view=_is_one_piece,
    flops=_free,
)
register("place", _place_infer, _place_vjp, rows=rows.slicing, flops=_free)
register("pad", _pad_infer, _pad_vjp, rows=rows.pad, flops=_free)
register("concat", _concat_infer, _concat_vjp, rows=rows.concat, flops=_free)
register("reverse", same_as_first, _reverse_vjp, rows=rows.reverse, flops=_free)
