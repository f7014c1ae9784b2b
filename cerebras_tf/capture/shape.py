"""Lowerings of shape ops, constants, ranges and diagonals.

Dimensions are numbers or symbolic sizes when a graph is captured, so `Shape` and its arithmetic
become sizes here; only shapes that depend on data stay values. Slicing and joining are in slicing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, known_numbers, sizes, wanted_shape
from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Size, Value
from cerebras_tf.ir.dimensions import ensure_at_most, smaller
from cerebras_tf.ops.inference import broadcast_shapes, normalize_axes
from cerebras_tf.ops.shape import broadcast_as, diagonal, reshape, zeros_like
from cerebras_tf.ops.sizes import counted, counts


@lowers("Const", "HostConst")
def _const(low: Lowering, op: Operation) -> Sequence[Value]:
    dtype = low.tf_type(op.outputs[0]).dtype
    return [low.b.constant(tf.make_ndarray(op.get_attr("value")), dtype)]


@lowers("Shape", "ShapeN")
def _shape(low: Lowering, op: Operation) -> Sequence[Value]:
    dtype = op.get_attr("out_type").name
    results = []
    for x in low.inputs(op):
        known = [dim for dim in x.shape if dim is not None]
        if len(known) == x.type.rank:
            results.append(counts(low.b, known, dtype))
        else:
            results.append(low.b.op("shape_of", x, dtype=dtype))
    return results


@lowers("Size")
def _size(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,), dtype = low.inputs(op), op.get_attr("out_type").name
    if x.type.is_bounded:
        return [counts(low.b, x.type.size, dtype)]
    dims = low.b.op("shape_of", x, dtype=dtype)
    return [low.b.op("prod", dims, axes=(0,), keepdims=False)]


@lowers("Rank")
def _rank(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.constant(low.inputs(op)[0].type.rank, "int32")]


@lowers("Reshape")
def _reshape(low: Lowering, op: Operation) -> Sequence[Value]:
    x, target = low.inputs(op)
    shape = wanted_shape(low, op, 1)
    if sum(dim is None or dim == -1 for dim in shape) > 1:
        known = tuple(None if dim == -1 else dim for dim in shape)
        return [low.b.op("reshape_dynamic", x, target, shape=known)]
    return [reshape(low.b, x, tuple(None if dim == -1 else dim for dim in shape))]


@lowers("ExpandDims")
def _expand_dims(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    (axis,) = normalize_axes(integers(low, op.inputs[1], "axis"), x.type.rank + 1)
    return [reshape(low.b, x, (*x.shape[:axis], 1, *x.shape[axis:]))]


@lowers("Squeeze")
def _squeeze(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    given = op.get_attr("squeeze_dims")
    axes = normalize_axes(given, x.type.rank) if given else None
    if axes is None and not x.type.is_static:
        raise UnsupportedOpError(
            f"Squeeze: without axes, every dimension must be known. Received: {x!r}. Name the axes."
        )
    dims = tuple(
        dim for i, dim in enumerate(x.shape) if (dim != 1 if axes is None else i not in axes)
    )
    return [reshape(low.b, x, dims)]


@lowers("Transpose")
def _transpose(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    order = [axis % x.type.rank for axis in integers(low, op.inputs[1], "the permutation")]
    if order == list(range(x.type.rank)):
        return [x]
    return [low.b.op("transpose", x, permutation=tuple(order))]


@lowers("InvertPermutation")
def _invert_permutation(low: Lowering, op: Operation) -> Sequence[Value]:
    order = low.static(op.inputs[0], "the permutation")
    return [low.b.constant(np.argsort(order).astype(order.dtype))]


def _broadcast(low: Lowering, op: Operation, x: Value, index: int) -> Value:
    shape = wanted_shape(low, op, index)
    if None in shape:
        return low.b.op("broadcast_dynamic", x, low.value(op.inputs[index]), shape=shape)
    return x if x.shape == shape else low.b.op("broadcast_to", x, shape=shape)


@lowers("BroadcastTo")
def _broadcast_to(low: Lowering, op: Operation) -> Sequence[Value]:
    return [_broadcast(low, op, low.value(op.inputs[0]), 1)]


@lowers("Fill")
def _fill(low: Lowering, op: Operation) -> Sequence[Value]:
    return [_broadcast(low, op, low.value(op.inputs[1]), 0)]


@lowers("ZerosLike")
def _zeros_like(low: Lowering, op: Operation) -> Sequence[Value]:
    return [zeros_like(low.b, low.inputs(op)[0])]


@lowers("OnesLike")
def _ones_like(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    return [broadcast_as(low.b, low.b.constant(1, x.dtype), x)]


@lowers("BroadcastArgs")
def _broadcast_args(low: Lowering, op: Operation) -> Sequence[Value]:
    shapes = [tuple(sizes(low, tensor, "a shape")) for tensor in op.inputs]
    shape = [dim for dim in broadcast_shapes(shapes) if dim is not None]
    return [counts(low.b, shape, op.outputs[0].dtype.name)]


@lowers("BroadcastGradientArgs")
def _broadcast_gradient_args(low: Lowering, op: Operation) -> Sequence[Value]:
    """Axes to sum the cotangents of two broadcast operands over."""
    shapes = [sizes(low, tensor, "a shape") for tensor in op.inputs]
    broadcast_shapes([tuple(shape) for shape in shapes])
    rank = max(len(shape) for shape in shapes)
    padded = [[*(1,) * (rank - len(shape)), *shape] for shape in shapes]
    results = []
    for mine in padded:
        axes = [i for i in range(rank) if mine[i] == 1 and (padded[0][i] != 1 or padded[1][i] != 1)]
        axes += [i for i in range(rank) if padded[0][i] == padded[1][i] == 1]
        results.append(low.b.constant(np.array(sorted(axes), op.outputs[0].dtype.name)))
    return results


@lowers("Tile")
def _tile(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    multiples = tuple(sizes(low, op.inputs[1], "multiples"))
    if all(multiple == 1 for multiple in multiples):
        return [x]
    return [low.b.op("tile", x, multiples=multiples)]


@lowers("Range")
def _range(low: Lowering, op: Operation) -> Sequence[Value]:
    found = [low.maybe_static(tensor) for tensor in op.inputs]
    known = [number for number in found if number is not None]
    if len(known) == len(found):
        start, limit, delta = known
        # The types of NumPy 2.5 do not know that arrays without axes are numbers.
        ends = start, limit, delta
        numbers = np.arange(*ends, dtype=start.dtype)  # type: ignore[call-overload,unused-ignore]
        return [low.b.constant(numbers)]
    symbolic = _symbolic_range(low, op)
    return [low.b.op("range", *low.inputs(op)) if symbolic is None else symbolic]


def _symbolic_range(low: Lowering, op: Operation) -> Optional[Value]:
    """A range whose ends are sizes and whose length has one formula for all batches, or None."""
    ends = [_scalar_size(value) for value in low.inputs(op)]
    start, limit, delta = ends
    if start is None or limit is None or delta is None:
        return None
    try:
        count = -((start - limit) // delta)  # rounds numbers up
    except GraphError:
        return None
    if not ensure_at_most(0, count):
        return None
    return counted(low.b, count, delta, low.inputs(op)[0].dtype, start)


def _scalar_size(value: Value) -> Optional[Size]:
    """The size that an integer scalar holds, or a float scalar that is a cast integer."""
    constant = value.constant
    if constant is not None:
        number = constant.item()
        return int(number) if float(number).is_integer() else None
    if value.node is not None and value.node.op == "cast" and value.type.is_floating:
        value = value.node.inputs[0]
    (known,) = known_numbers(value)
    return known


@lowers("LinSpace")
def _lin_space(low: Lowering, op: Operation) -> Sequence[Value]:
    start, stop, count = (low.static(tensor, "an end of the range") for tensor in op.inputs)
    return [low.b.constant(np.linspace(start, stop, int(count), dtype=start.dtype))]


@lowers("OneHot")
def _one_hot(low: Lowering, op: Operation) -> Sequence[Value]:
    indices, _, on_value, off_value = low.inputs(op)
    (depth,) = sizes(low, op.inputs[1], "depth")
    attrs: dict[str, object] = {"depth": depth, "axis": int(op.get_attr("axis"))}
    if on_value.constant is not None and off_value.constant is not None:
        attrs["on_value"] = on_value.constant.item()
        attrs["off_value"] = off_value.constant.item()
        return [low.b.op("one_hot", indices, dtype=on_value.dtype, **attrs)]
    hit = low.b.op("one_hot", indices, dtype="bool", on_value=True, off_value=False, **attrs)
    chosen = low.b.op("select", hit, on_value, off_value)
    return [low.b.op("stop_gradient", chosen)]  # TensorFlow's OneHot has no gradient


@lowers("MatrixBandPart")
def _band_part(low: Lowering, op: Operation) -> Sequence[Value]:
    (lower,), (upper,) = (integers(low, tensor, "the band") for tensor in op.inputs[1:])
    return [low.b.op("band_part", low.value(op.inputs[0]), lower=lower, upper=upper)]


def _require_main_diagonal(low: Lowering, op: Operation, index: int = 1) -> None:
    if op.type.endswith(("V2", "V3")):
        offsets = integers(low, op.inputs[index], "k")
        if any(offset != 0 for offset in offsets):
            raise UnsupportedOpError(
                f"{op.type}: only the main diagonal has an IR form. Received: k={offsets}. "
                "Slice the matrix first."
            )


@lowers("DiagPart", "MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def _diag_part(low: Lowering, op: Operation) -> Sequence[Value]:
    _require_main_diagonal(low, op)
    x = low.value(op.inputs[0])
    if op.type == "DiagPart" and x.type.rank != 2:
        raise UnsupportedOpError(
            f"DiagPart: the operand must be a matrix. Received: {x!r}. Use tf.linalg.diag_part."
        )
    return [low.b.op("diag_part", x)]


@lowers("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _set_diag(low: Lowering, op: Operation) -> Sequence[Value]:
    x, values = low.value(op.inputs[0]), low.value(op.inputs[1])
    if op.type != "MatrixSetDiag":
        _require_main_diagonal(low, op, 2)
    rows, columns = x.shape[-2:]
    if rows is None or columns is None:
        raise UnsupportedOpError(
            f"{op.type}: matrices must have a known size. Received: {x!r}. Set the static shape."
        )
    by_row = smaller(rows, columns) == rows
    edge = (*values.shape, 1) if by_row else (*values.shape[:-1], 1, values.shape[-1])
    on_diagonal = diagonal(low.b, rows, columns)
    return [low.b.op("select", on_diagonal, reshape(low.b, values, edge), x)]


@lowers("Diag", "MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def _diag(low: Lowering, op: Operation) -> Sequence[Value]:
    """Square matrices with a vector on the main diagonal."""
    _require_main_diagonal(low, op)
    x = low.value(op.inputs[0])
    length = x.shape[-1]
    if (op.type == "Diag" and x.type.rank != 1) or length is None:
        raise UnsupportedOpError(
            f"{op.type}: the operand must be a vector of known length. Received: {x!r}. "
            "Use tf.linalg.diag."
        )
    column = reshape(low.b, x, (*x.shape, 1))
    on_diagonal = diagonal(low.b, length, length)
    return [low.b.op("select", on_diagonal, column, low.b.constant(0, x.dtype))]
