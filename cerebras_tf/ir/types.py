"""Tensor types: what is known about a value before it is computed.

Holds dtype and shape only; it deliberately knows nothing of graphs or of what ops do with types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from cerebras_tf.errors import GraphError

Shape = tuple[Optional[int], ...]
Array = npt.NDArray[Any]

# Bytes of one element. bfloat16 has no NumPy dtype; graphs that name it are widened to run.
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

_TYPE = re.compile(r"(?P<dtype>[a-z0-9]+)\[(?P<dims>[0-9?,]*)\]$")


@dataclass(frozen=True)
class TensorType:
    """dtype and shape of a value.

    Attributes:
        dtype: NumPy's name of the element type, or "bfloat16".
        shape: one entry a dimension; None where the size is known only at run time.
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

    @property
    def is_static(self) -> bool:
        """Whether every dimension is known."""
        return None not in self.shape

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating point numbers."""
        return "float" in self.dtype

    @property
    def size(self) -> int:
        """Number of elements; raises GraphError where a dimension is unknown."""
        count = 1
        for dim in self.shape:
            if dim is None:
                raise GraphError(
                    f"tensor type: size needs every dimension. Received: {self}. "
                    "Bind the graph to concrete shapes first."
                )
            count *= dim
        return count

    @property
    def bytes(self) -> int:
        """Bytes of the dense tensor; raises GraphError where a dimension is unknown."""
        return self.size * ITEM_BYTES[self.dtype]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 maps to the float32 that stands in for it."""
        return np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)

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
    """The inverse of str(): "float32[2,?]" -> TensorType. Raises GraphError on other text."""
    match = _TYPE.match(text.strip())
    if match is None:
        raise GraphError(
            f"tensor type: text must look like float32[2,?]. Received: {text!r}. Correct it."
        )
    dims = [dim for dim in match["dims"].split(",") if dim]
    return TensorType(match["dtype"], tuple(None if dim == "?" else int(dim) for dim in dims))
