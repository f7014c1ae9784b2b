"""Lowerings of TensorFlow's shape ops.

Shapes are concrete by the time a graph is captured, so `Shape` and its arithmetic become constants
here; only shapes that depend on data stay values. Cutting and joining deliberately lives in
slicing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Value
from cerebras_tf.ops.inference import normalize_axes
from cerebras_tf.ops.shape import broadcast_as, reshape, zeros_like

Numbers = list[Optional[int]]


def known_numbers(value: Value) -> Numbers:
    """Elements of an integer scalar or vector; None for those that depend on data.

    Looks through what TensorFlow writes around shapes: slices, reshapes, casts, concatenations.
    """
    if value.constant is not None:
        return [int(number) for number in value.constant.reshape(-1)]
    node = value.node
    nothing: Numbers = [None] * value.type.size
    if node is None or value.type.rank > 1:
        return nothing
    if node.op == "shape_of":
        return list(node.inputs[0].shape)
    if node.op in ("reshape", "cast", "identity"):
        return known_numbers(node.inputs[0])
    if node.op == "concat":
        return [number for part in node.inputs for number in known_numbers(part)]
    if node.op == "slice":
        whole = known_numbers(node.inputs[0])
        (start,), (size,) = node.attrs["starts"], node.attrs["sizes"]
        (stride,) = node.attrs["strides"]
        return [whole[start + i * stride] for i in range(size)]
    return nothing


def constant_if_known(low: Lowering, value: Value) -> Value:
    """A constant in place of an integer vector or scalar all of whose elements are known."""
    if value.constant is not None or not value.type.is_static or value.type.rank > 1:
        return value
    numbers = known_numbers(value)
    if None in numbers:
        return value
    content = np.array(numbers, value.dtype).reshape([dim or 0 for dim in value.shape])
    return low.b.constant(content)


def wanted_shape(low: Lowering, op: Operation, index: int) -> Shape:
    """Dimensions that a shape operand holds, completed by TensorFlow's; None: depends on data."""
    numbers = known_numbers(low.value(op.inputs[index]))
    static = op.outputs[0].shape
    if static.rank == len(numbers):
        return tuple(dim if n is None else n for n, dim in zip(numbers, static.as_list()))
    return tuple(numbers)


def integers(low: Lowering, tensor: Tensor, what: str) -> list[int]:
    """Content of a constant integer tensor as a flat list."""
    return [int(number) for number in low.static(tensor, what).reshape(-1)]


@lowers("Const", "HostConst")
def _const(low: Lowering, op: Operation) -> Sequence[Value]:
    dtype = low.tf_type(op.outputs[0]).dtype
    return [low.b.constant(tf.make_ndarray(op.get_attr("value")), dtype)]


@lowers("Shape", "ShapeN")
def _shape(low: Lowering, op: Operation) -> Sequence[Value]:
    dtype = op.get_attr("out_type").name
    results = []
    for x in low.inputs(op):
        if x.type.is_static:
            results.append(low.b.constant(np.array(x.shape, dtype)))
        else:
            results.append(low.b.op("shape_of", x, dtype=dtype))
    return results


@lowers("Size")
def _size(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,), dtype = low.inputs(op), op.get_attr("out_type").name
    if x.type.is_static:
        return [low.b.constant(x.type.size, dtype)]
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
    result = reshape(low.b, x, tuple(None if dim == -1 else dim for dim in shape))
    if result.node is not None and result.node.op == "reshape" and result.type.is_static:
        result.node.attrs["shape"] = result.shape
    return [result]


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
    dims = tuple(
        dim for i, dim in enumerate(x.shape) if (dim != 1 if axes is None else i not in axes)
    )
    return [reshape(low.b, x, dims)]


@lowers("EnsureShape")
def _ensure_shape(low: Lowering, op: Operation) -> Sequence[Value]:
    return low.inputs(op)


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
    first, second = (integers(low, tensor, "a shape") for tensor in op.inputs)
    shape = np.broadcast_shapes(tuple(first), tuple(second))
    return [low.b.constant(np.array(shape, op.outputs[0].dtype.name))]


@lowers("BroadcastGradientArgs")
def _broadcast_gradient_args(low: Lowering, op: Operation) -> Sequence[Value]:
    """Axes over which the cotangent of each of two broadcast operands is summed."""
    shapes = [integers(low, tensor, "a shape") for tensor in op.inputs]
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    results = []
    for mine in padded:
        axes = [i for i in range(rank) if mine[i] == 1 and (padded[0][i] != 1 or padded[1][i] != 1)]
        axes += [i for i in range(rank) if padded[0][i] == padded[1][i] == 1]
        results.append(low.b.constant(np.array(sorted(axes), op.outputs[0].dtype.name)))
    return results


@lowers("Tile")
def _tile(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    multiples = tuple(integers(low, op.inputs[1], "multiples"))
    if all(multiple == 1 for multiple in multiples):
        return [x]
    return [low.b.op("tile", x, multiples=multiples)]


@lowers("Range")
def _range(low: Lowering, op: Operation) -> Sequence[Value]:
    numbers = [low.maybe_static(tensor) for tensor in op.inputs]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        start, limit, delta = known
        return [low.b.constant(np.arange(start, limit, delta, dtype=start.dtype))]
    return [low.b.op("range", *low.inputs(op))]


@lowers("LinSpace")
def _lin_space(low: Lowering, op: Operation) -> Sequence[Value]:
    start, stop, count = (low.static(tensor, "an end of the range") for tensor in op.inputs)
    return [low.b.constant(np.linspace(start, stop, int(count), dtype=start.dtype))]


@lowers("OneHot")
def _one_hot(low: Lowering, op: Operation) -> Sequence[Value]:
    indices, _, on_value, off_value = low.inputs(op)
    (depth,) = integers(low, op.inputs[1], "depth")
    attrs = {"depth": depth, "axis": int(op.get_attr("axis"))}
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
    x, diagonal = low.value(op.inputs[0]), low.value(op.inputs[1])
    if op.type != "MatrixSetDiag":
        _require_main_diagonal(low, op, 2)
    rows, columns = x.shape[-2:]
    if rows is None or columns is None:
        raise UnsupportedOpError(
            f"{op.type}: matrices must have a known size. Received: {x!r}. Set the static shape."
        )
    by_row = rows <= columns
    edge = (*diagonal.shape, 1) if by_row else (*diagonal.shape[:-1], 1, diagonal.shape[-1])
    on_diagonal = low.b.constant(np.eye(rows, columns, dtype=bool))
    return [low.b.op("select", on_diagonal, reshape(low.b, diagonal, edge), x)]


@lowers("Diag", "MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def _diag(low: Lowering, op: Operation) -> Sequence[Value]:
    """Square matrices with the vector on the main diagonal."""
    _require_main_diagonal(low, op)
    x = low.value(op.inputs[0])
    if (op.type == "Diag" and x.type.rank != 1) or x.shape[-1] is None:
        raise UnsupportedOpError(
            f"{op.type}: the operand must be a vector of known length. Received: {x!r}. "
            "Use tf.linalg.diag."
        )
    column = reshape(low.b, x, (*x.shape, 1))
    on_diagonal = low.b.constant(np.eye(x.shape[-1], dtype=bool))
    return [low.b.op("select", on_diagonal, column, low.b.constant(0, x.dtype))]
