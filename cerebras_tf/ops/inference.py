"""Inference rules that several families share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Shape, Size, TensorType, Value


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcasting of shapes; an unknown dimension and 1 give an unknown one.

    Raises:
        GraphError: dimensions differ, or may differ.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Optional[Size]] = []
    for axis in range(-rank, 0):
        dims = [shape[axis] for shape in shapes if -axis <= len(shape)]
        known = {dim for dim in dims if dim is not None and dim != 1}
        if len(known) > 1:
            raise GraphError(
                f"broadcast: shapes must agree or be 1. Received: {list(shapes)}. "
                "Reshape or expand one of them."
            )
        if known:
            result.append(known.pop())
        else:
            result.append(None if None in dims else 1)
    return tuple(result)


def same_as_first(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """One output typed like the first operand."""
    return [inputs[0].type]


def broadcast(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """One output: first operand's dtype, all operands' broadcast shape; dtypes must be equal."""
    require_same_dtype(inputs)
    shape = broadcast_shapes([value.shape for value in inputs])
    return [TensorType(inputs[0].dtype, shape)]


def broadcast_bool(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """One bool output of the broadcast shape; operands' dtypes must be equal."""
    require_same_dtype(inputs)
    return [TensorType("bool", broadcast_shapes([value.shape for value in inputs]))]


def require_same_dtype(inputs: Sequence[Value]) -> None:
    """Raises GraphError where operands differ in dtype."""
    if len({value.dtype for value in inputs}) > 1:
        raise GraphError(
            f"operands must have one dtype. Received: {list(inputs)}. Cast one of them."
        )


def normalize_axes(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes (an int, a sequence or None for all) as sorted non-negative numbers."""
    if axes is None:
        return tuple(range(rank))
    numbers = [int(axes)] if not hasattr(axes, "__iter__") else [int(axis) for axis in axes]
    if any(axis < -rank or axis >= rank for axis in numbers):
        raise GraphError(f"axes must be in [{-rank}, {rank}). Received: {numbers}.")
    return tuple(sorted({axis % rank for axis in numbers}))
