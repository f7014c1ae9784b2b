"""Tensor types: dtype and shape of a value."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.dimensions import Dim, Size, bound_of, parse_dim

# A dimension is a number, a symbolic size with a bound, or None: known only after computing.
Shape = tuple[Optional[Size], ...]
Array = npt.NDArray[Any]

# Bytes of one stored element. NumPy has no bfloat16: its bits are stored as uint16.
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}

HALF_TYPES = ("float16", "bfloat16")

_TYPE = re.compile(r"(?P<dtype>[a-z0-9]+)\[(?P<dims>[^\[\]]*)\]$")


@dataclass(frozen=True)
class TensorType:
    """dtype and shape of a value.

    Attributes:
        dtype: NumPy's name of the element type, or "bfloat16".
        shape: for each dimension an int; a Dim if it differs from batch to batch; None if it is
            known only after the value is computed.
    """

    dtype: str
    shape: Shape

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise GraphError(
                f"tensor type: dtype must be one of {', '.join(ITEM_BYTES)}. "
                f"Received: {self.dtype}. Cast it, or keep the tensor on the host."
            )

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @functools.cached_property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape; raises GraphError where a dimension is not a number."""
        if not self.is_static:
            raise GraphError(
                f"tensor type: every dimension must be a number. Received: {self}. "
                "Bind the program to sizes first."
            )
        return self.shape  # type: ignore[return-value]

    @property
    def is_bounded(self) -> bool:
        """Whether every dimension is a number or has a bound."""
        return None not in self.shape

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating point numbers."""
        return "float" in self.dtype

    @property
    def size(self) -> Size:
        """Number of elements; raises GraphError where a dimension is unknown."""
        count: Size = 1
        for dim in self.shape:
            if dim is None:
                raise GraphError(
                    f"tensor type: size needs every dimension. Received: {self}. "
                    "Bind the graph to concrete shapes first."
                )
            count = count * dim
        return count

    @property
    def bytes(self) -> int:
        """Bytes of the stored tensor; raises GraphError where a dimension is not a number."""
        size = self.size
        if isinstance(size, Dim):
            raise GraphError(
                f"tensor type: bytes need a number for every dimension. Received: {self}. "
                "Use max_bytes, or at(sizes) first."
            )
        return size * ITEM_BYTES[self.dtype]

    @property
    def max_bytes(self) -> int:
        """Bytes for the largest sizes; raises GraphError where a dimension is unknown."""
        return bound_of(self.size) * ITEM_BYTES[self.dtype]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of plain kernels' arrays; float32 for bfloat16."""
        return np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the stored bytes; uint16 for bfloat16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    def at(self, sizes: Mapping[str, int]) -> TensorType:
        """The type with its symbols bound to sizes.

        Raises:
            GraphError: a symbol has no size or one beyond its bound, or a dimension is negative.
        """
        dims = tuple(dim.at(sizes) if isinstance(dim, Dim) else dim for dim in self.shape)
        if any(dim is not None and dim < 0 for dim in dims):
            raise GraphError(
                f"tensor type {self}: dimensions must not be negative. Received: {dict(sizes)}. "
                "Use a program for these sizes."
            )
        return TensorType(self.dtype, dims)

    def with_dtype(self, dtype: str) -> TensorType:
        """The same shape with another dtype."""
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        """The same dtype with another shape."""
        return TensorType(self.dtype, tuple(shape))

    def __str__(self) -> str:
        dims = ",".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.dtype}[{dims}]"


def parse_type(text: str) -> TensorType:
    """The inverse of str(): "float32[S<=128,?]" -> TensorType. Raises GraphError on other text."""
    match = _TYPE.match(text.strip())
    if match is None:
        raise GraphError(
            f"tensor type: text must look like float32[2,?]. Received: {text!r}. Correct it."
        )
    try:
        dims = [dim for dim in match["dims"].split(",") if dim]
        shape = tuple(None if dim == "?" else parse_dim(dim) for dim in dims)
    except GraphError as error:
        raise GraphError(f"tensor type {text!r}: {error}") from error
    return TensorType(match["dtype"], shape)
