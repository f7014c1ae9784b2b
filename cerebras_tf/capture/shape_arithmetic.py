"""Evaluates arithmetic on shapes symbolically, so that its results are sizes.

A result that depends on a tensor's content, or has no exact symbolic form (half of an odd length),
is unknown: None.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np
import numpy.typing as npt

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.registry import Lowering
from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Node, Shape, Size, Value, bound_of
from cerebras_tf.ir.dimensions import smaller
from cerebras_tf.ops.sizes import counts

Numbers = list[Optional[Size]]
# Content of a value, element by element: int, Dim or None.
Content = npt.NDArray[np.object_]
# rule(node, contents of its operands) -> content of its output.
_Rule = Callable[[Node, Sequence[Content]], Content]
# Larger tensors are not shapes or paddings.
_MAX_ELEMENTS = 256


def known_numbers(value: Value) -> Numbers:
    """Elements of an integer tensor in row-major order; None for unknown ones.

    Raises:
        UnsupportedOpError: the number of elements depends on the batch.
    """
    content = _content(value)
    if content is not None:
        return list(content.reshape(-1))
    if not value.type.is_static:
        raise UnsupportedOpError(
            f"a tensor of sizes must have a known length. Received: {value!r}. "
            "Give it a static shape."
        )
    return list(_unknown(value).reshape(-1))


def constant_if_known(low: Lowering, value: Value) -> Value:
    """An integer scalar or vector as a constant, or an op without operands if it is symbolic.

    Returns the value itself if any element is unknown.
    """
    if value.constant is not None or not value.type.is_static or value.type.rank > 1:
        return value
    numbers = [number for number in known_numbers(value) if number is not None]
    if len(numbers) != value.type.size:
        return value
    return counts(low.b, numbers if value.type.rank else numbers[0], value.dtype)


def wanted_shape(low: Lowering, op: Operation, index: int) -> Shape:
    """Dimensions of a shape operand, or TensorFlow's static ones; None if they depend on data."""
    numbers = known_numbers(low.value(op.inputs[index]))
    static = op.outputs[0].shape
    if static.rank == len(numbers):
        return tuple(dim if n is None else n for n, dim in zip(numbers, static.as_list()))
    return tuple(numbers)


def integers(low: Lowering, tensor: Tensor, what: str) -> list[int]:
    """Content of a constant integer tensor as a flat list; raises UnsupportedOpError."""
    return [int(number) for number in low.static(tensor, what).reshape(-1)]


def sizes(low: Lowering, tensor: Tensor, what: str) -> list[Size]:
    """Content of an integer tensor of sizes as a flat list; raises UnsupportedOpError."""
    numbers = known_numbers(low.value(tensor))
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else list(integers(low, tensor, what))


def _content(value: Value) -> Optional[Content]:
    """Elements of a small integer tensor; None if it is unknown or something else."""
    if value.dtype not in ("int32", "int64") or not value.type.is_static:
        return None
    if bound_of(value.type.size) > _MAX_ELEMENTS:
        return None
    if value.constant is not None:
        return np.asarray(value.constant).astype(object)
    node = value.node
    if node is None:
        return None
    if node.op == "shape_of":
        return _objects(node.inputs[0].shape, value)
    if node.op == "sizes":
        dims = node.attrs["dims"]
        return _objects(dims if isinstance(dims, tuple) else (dims,), value)
    if node.op not in _RULES:
        return None
    operands = [_content(operand) for operand in node.inputs]
    if node.op == "concat":  # some operands may be known, some not
        pairs = zip(operands, node.inputs)
        operands = [_unknown(value) if known is None else known for known, value in pairs]
    present = [operand for operand in operands if operand is not None]
    return _RULES[node.op](node, present) if len(present) == len(operands) else None


def _objects(items: Sequence[Optional[Size]], value: Value) -> Content:
    """An object array of sizes; np.array would try to convert them."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape([int(dim) for dim in value.shape if isinstance(dim, int)])


def _unknown(value: Value) -> Content:
    return np.full([dim if isinstance(dim, int) else 0 for dim in value.shape], None, object)


def _elementwise(combine: Callable[[Sequence[Size]], Size]) -> _Rule:
    """A rule that combines elements; unknown if an operand is, or if the result has no form."""

    def combined(items: Numbers) -> Optional[Size]:
        known = [item for item in items if item is not None]
        if len(known) != len(items):
            return None
        try:
            return combine(known)
        except (GraphError, ZeroDivisionError):
            return None

    def rule(node: Node, operands: Sequence[Content]) -> Content:
        result = np.empty(np.broadcast_shapes(*(operand.shape for operand in operands)), object)
        spread = np.broadcast_arrays(*operands)
        for index in itertools.product(*(range(dim) for dim in result.shape)):
            result[index] = combined([operand[index] for operand in spread])
        return result

    return rule


def _reduced(combine: Callable[[Sequence[Size]], Size]) -> _Rule:
    """A rule that reduces a vector."""

    def rule(node: Node, operands: Sequence[Content]) -> Content:
        (x,) = operands
        items = [item for item in x.reshape(-1) if item is not None]
        total = combine(items) if len(items) == x.size and x.ndim == 1 else None
        return np.full((1,) if node.attrs["keepdims"] else (), total, object)

    return rule


def _slice(node: Node, operands: Sequence[Content]) -> Content:
    (x,) = operands
    windows = list(zip(*(node.attrs[name] for name in ("starts", "sizes", "strides"))))
    if not all(isinstance(number, int) for window in windows for number in window):
        return _unknown(node.output)
    positions = [start + stride * np.arange(size) for start, size, stride in windows]
    return x[np.ix_(*positions)] if positions else x


def _gather(node: Node, operands: Sequence[Content]) -> Content:
    x, positions = operands
    if node.attrs["batch_dims"] or any(not isinstance(p, int) for p in positions.reshape(-1)):
        return _unknown(node.output)
    return np.asarray(np.take(x, positions.astype("int64"), node.attrs["axis"]), object)


def _larger(pair: Sequence[Size]) -> Size:
    first, second = pair
    return first + second - smaller(first, second)


_RULES: dict[str, _Rule] = {
    "add": _elementwise(sum),
    "broadcast_to": lambda node, xs: np.broadcast_to(xs[0], node.attrs["shape"]),
    "cast": lambda node, xs: xs[0],
    "concat": lambda node, xs: np.concatenate(xs, node.attrs["axis"]),
    "floor_div": _elementwise(lambda pair: pair[0] // pair[1]),
    "gather": _gather,
    "identity": lambda node, xs: xs[0],
    "maximum": _elementwise(_larger),
    "minimum": _elementwise(lambda pair: smaller(*pair)),
    "mul": _elementwise(math.prod),
    "neg": _elementwise(lambda one: -one[0]),
    "prod": _reduced(math.prod),
    "reshape": lambda node, xs: xs[0].reshape(node.attrs["shape"]),
    "slice": _slice,
    "stop_gradient": lambda node, xs: xs[0],
    "sub": _elementwise(lambda pair: pair[0] - pair[1]),
    "sum": _reduced(sum),
}
