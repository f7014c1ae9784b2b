"""Lowerings of lists of tensors, which loops read and write.

The value of a list is the stack of its elements. A list that was made without the shape of its
elements is a PendingList until the first write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.registry import GraphLowering, lowers
from cerebras_tf.capture.shape_arithmetic import known_numbers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Size, TensorType, Value
from cerebras_tf.ops import Builder
from cerebras_tf.ops.sizes import counts, known_count


class PendingList(Value):
    """A list whose elements were not written yet.

    Attributes:
        element: what is known of the shape of its elements; None if that is nothing.
        grows: whether a write beyond its end makes it longer.
    """

    __slots__ = ("element", "grows")

    def __init__(self, dtype: str, count: Size, element: Optional[Shape], grows: bool) -> None:
        super().__init__("list", TensorType(dtype, (count,)))
        self.element, self.grows = element, grows

    def grown(self, rows: int) -> PendingList:
        """The same list, with at least so many elements if it grows; it grows no more."""
        count = self.shape[0]
        assert isinstance(count, int) or not self.grows
        wanted = max(count, rows) if self.grows and isinstance(count, int) else count
        assert wanted is not None
        return PendingList(self.dtype, wanted, self.element, False)

    def filled(self, b: Builder, element: Shape) -> Value:
        """Zeros for elements of a shape."""
        zero = b.constant(0, self.dtype)
        return b.op("broadcast_to", zero, shape=(*self.shape, *element))


def _element_shape(c: GraphLowering, tensor: Tensor) -> Optional[Shape]:
    """What is known of the shape of a list's elements."""
    value = c.value(tensor)
    if value.type.rank == 0:
        return None
    return tuple(None if n == -1 else n for n in known_numbers(value))


def _stack(c: GraphLowering, tensor: Tensor, like: Optional[Tensor] = None) -> Value:
    """The elements of a list; zeros if it was not written."""
    value = c.value(tensor)
    if not isinstance(value, PendingList):
        return value
    element = value.element
    if (element is None or None in element) and like is not None:
        dims = like.shape
        element = tuple(dims.as_list()) if dims.rank is not None else None
    if element is None or None in element:
        raise UnsupportedOpError(
            "the shape of a list's elements must be known where it is read before it is written. "
            f"Received: {element}. Give tf.TensorArray element_shape, or write it first."
        )
    return value.filled(c.b, element)


def _written(c: GraphLowering, tensor: Tensor, index: Value, item: Value) -> Value:
    """The list after a write."""
    value = c.value(tensor)
    if isinstance(value, PendingList):
        element = item.shape if index.type.rank == 0 else item.shape[1:]
        if value.grows:
            value = _grown(value, index)
        value = value.filled(c.b, element)
    return c.b.op("rows_update", value, index, item)


def _grown(value: PendingList, index: Value) -> PendingList:
    number, count = known_count(index), value.shape[0]
    if not isinstance(number, int) or not isinstance(count, int):
        raise UnsupportedOpError(
            "the number of elements of a list must be known where a loop writes it. Received: "
            "dynamic_size. Give tf.TensorArray the number of iterations as size."
        )
    return PendingList(value.dtype, max(count, number + 1), value.element, True)


@lowers("TensorListReserve")
def _reserve(c: GraphLowering, op: Operation) -> Sequence[Value]:
    (count,) = known_numbers(c.value(op.inputs[1]))
    if count is None:
        raise UnsupportedOpError(
            "the number of elements of a list must be known before the first step. Received: a "
            "value that depends on data. Give tf.TensorArray a static size."
        )
    dtype = op.get_attr("element_dtype").name
    return [PendingList(dtype, count, _element_shape(c, op.inputs[0]), count == 0)]


@lowers("TensorListFromTensor")
def _from_tensor(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [c.value(op.inputs[0])]


@lowers("TensorListStack")
def _list_stack(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_stack(c, op.inputs[0])]


@lowers("TensorListGetItem", "TensorListGather")
def _get_item(c: GraphLowering, op: Operation) -> Sequence[Value]:
    like = op.outputs[0] if op.type == "TensorListGetItem" else None
    elements = _stack(c, op.inputs[0], like)
    return [c.b.op("gather", elements, c.value(op.inputs[1]), axis=0, batch_dims=0)]


@lowers("TensorListSetItem")
def _set_item(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_written(c, op.inputs[0], c.value(op.inputs[1]), c.value(op.inputs[2]))]


@lowers("TensorListScatterIntoExistingList")
def _scatter_into(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_written(c, op.inputs[0], c.value(op.inputs[2]), c.value(op.inputs[1]))]


@lowers("TensorListLength", "TensorArraySizeV3")
def _length(c: GraphLowering, op: Operation) -> Sequence[Value]:
    count = c.value(op.inputs[-1]).shape[0]
    if count is None:
        raise UnsupportedOpError("the number of elements of a list must be known.")
    return [counts(c.b, count, "int32")]


@lowers("TensorListConcatV2")
def _concat(c: GraphLowering, op: Operation) -> Sequence[Value]:
    elements = _stack(c, op.inputs[0])
    rows, first, *rest = elements.shape
    if not isinstance(rows, int) or first is None:
        raise UnsupportedOpError("the elements of a list that is joined must have known sizes.")
    lengths = counts(c.b, [first] * rows, "int64")
    return [c.b.op("reshape", elements, shape=(-1, *rest)), lengths]


@lowers("EmptyTensorList")
def _empty(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Nothing: TensorFlow's backward graph has given a loop within a loop this list."""
    return []


# Lists of version 1: the last operand, a scalar in TensorFlow, is the list.


@lowers("TensorArrayV3")
def _array(c: GraphLowering, op: Operation) -> Sequence[Value]:
    (count,) = known_numbers(c.value(op.inputs[0]))
    if count is None:
        raise UnsupportedOpError(
            "the number of elements of a list must be known before the first step. Received: a "
            "value that depends on data. Give tf.TensorArray a static size."
        )
    dims = op.get_attr("element_shape")
    shape = None if dims.unknown_rank else tuple(d.size if d.size >= 0 else None for d in dims.dim)
    grows = bool(op.get_attr("dynamic_size"))
    made = PendingList(op.get_attr("dtype").name, count, shape, grows)
    return [made, made]


def _is_all(positions: Value, count: Optional[Size]) -> bool:
    content = positions.constant
    if content is None or not isinstance(count, int):
        return False
    return np.array_equal(content, np.arange(count))


@lowers("TensorArrayScatterV3")
def _array_scatter(c: GraphLowering, op: Operation) -> Sequence[Value]:
    positions, items = c.value(op.inputs[1]), c.value(op.inputs[2])
    held = c.value(op.inputs[3])
    if _is_all(positions, items.shape[0]) and held.shape[0] in (items.shape[0], 0):
        return [items]
    return [_written(c, op.inputs[3], positions, items)]


@lowers("TensorArrayGatherV3")
def _array_gather(c: GraphLowering, op: Operation) -> Sequence[Value]:
    positions, elements = c.value(op.inputs[1]), _stack(c, op.inputs[2])
    if _is_all(positions, elements.shape[0]):
        return [elements]
    return [c.b.op("gather", elements, positions, axis=0, batch_dims=0)]


@lowers("TensorArrayReadV3")
def _array_read(c: GraphLowering, op: Operation) -> Sequence[Value]:
    elements = _stack(c, op.inputs[2], op.outputs[0])
    return [c.b.op("gather", elements, c.value(op.inputs[1]), axis=0, batch_dims=0)]


@lowers("TensorArrayWriteV3")
def _array_write(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_written(c, op.inputs[3], c.value(op.inputs[1]), c.value(op.inputs[2]))]
