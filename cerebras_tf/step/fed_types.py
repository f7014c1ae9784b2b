"""Types of what a step is fed and of what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from cerebras_tf.errors import DataError
from cerebras_tf.ir import Dim, TensorType
from cerebras_tf.ir.dimensions import UNLIMITED

# Wanted values of at most this many bytes are returned by every step; larger ones on request.
_SMALL_BYTES = 1 << 16


def types_with_symbols(
    tensors: Iterable[Any], types: Iterable[TensorType], numbers: Iterator[int]
) -> Optional[list[TensorType]]:
    """Types with symbols for sizes that the graph leaves open; None where there are none.

    Sizes that are equal now share a symbol: a batch that contradicts it gets a program of its own.

    Args:
        tensors: as the graph has them.
        types: what came, of sizes that are numbers.
        numbers: to name symbols by.
    """
    symbols: dict[int, Any] = {}
    found = []
    for tensor, type in zip(tensors, types):
        static = tensor.shape.as_list() if tensor.shape.rank is not None else []
        dims: list[Any] = list(type.shape)
        for axis, (known, size) in enumerate(zip(static, type.shape)):
            if known is None and isinstance(size, int):
                if size == 0:
                    return None
                if size not in symbols:
                    symbols[size] = Dim.symbol(f"d{next(numbers)}", size, UNLIMITED)
                dims[axis] = symbols[size]
        found.append(type.with_shape(tuple(dims)))
    return found if symbols else None


def limited_type(type: TensorType, limits: Mapping[str, int]) -> TensorType:
    """The type of a feature, no symbol of it above a limit."""
    dims = []
    for dim in type.shape:
        for symbol in dim.symbols if isinstance(dim, Dim) else ():
            limit = min(symbol.limit, limits.get(symbol.name, symbol.limit))
            dim = Dim.symbol(symbol.name, symbol.most, limit)
        dims.append(dim)
    return type.with_shape(tuple(dims))


def smallest(tensor: Any) -> TensorType:
    """A type for a tensor that nothing reads."""
    sizes = tensor.shape.as_list() if tensor.shape.rank is not None else []
    return TensorType(tensor.dtype.base_dtype.name, tuple(size or 1 for size in sizes))


def is_small(type: TensorType) -> bool:
    """Whether a wanted value is returned by every step, and not on request only."""
    return type.is_static and type.bytes <= _SMALL_BYTES


def check_shape(tensor: Any, type: TensorType) -> None:
    """Raises DataError where fed content does not fit the tensor's static shape."""
    known = [dim if isinstance(dim, int) else None for dim in type.shape]
    if not tensor.shape.is_compatible_with(known):
        raise DataError(
            f"feature {tensor.name}: shape must fit {tensor.shape}. Received: {list(type.shape)}. "
            "Correct the input function."
        )
