"""Partitioned variables in checkpoints: as TensorFlow's Saver has it, under the whole's name.

On the wafer, and in the session, every part is a variable of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

import numpy as np

from cerebras_tf.bundle.index import TensorSlice

# A variable's name, or the name of the whole and the slice of a part, as SaveV2 takes it.
Key = Union[str, tuple[str, str]]


class Partitions:
    """Where parts of partitioned variables stand in a checkpoint.

    Args:
        variables: TensorFlow variables by name.

    Attributes:
        slices: which slice of which variable each part is, by the part's name.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        # Private API of TF 2.15, which Saver reads too: the slots of a part have one as well.
        found = {name: variable._get_save_slice_info() for name, variable in variables.items()}
        self._slices = {name: part for name, part in found.items() if part is not None}
        self.slices = {
            name: TensorSlice(
                part.full_name,
                tuple(part.full_shape),
                tuple(part.var_offset),
                tuple(part.var_shape),
            )
            for name, part in self._slices.items()
        }

    def stored(self, arrays: Mapping[str, np.ndarray]) -> dict[Key, np.ndarray]:
        """Arrays by variable name, with the keys of a checkpoint."""
        return {self._key(name): array for name, array in arrays.items()}

    def _key(self, name: str) -> Key:
        part = self._slices.get(name)
        return name if part is None else (part.full_name, part.spec)

    def name_of_whole(self, name: str) -> str:
        """Name under which a variable, or the whole it is a part of, stands in a checkpoint."""
        part = self._slices.get(name)
        return name if part is None else str(part.full_name)

    def whole(self, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Names and shapes of variables as a checkpoint has them."""
        found = {}
        for name, shape in shapes.items():
            part = self._slices.get(name)
            if part is None:
                found[name] = shape
            else:
                found[part.full_name] = list(part.full_shape)
        return found

    def reader(self, checkpoint: Any) -> PartReader:
        """The reader of a checkpoint that also reads parts."""
        return PartReader(checkpoint, self._slices)


class PartReader:
    """A checkpoint reader that gives a part under the part's own name."""

    def __init__(self, checkpoint: Any, slices: Mapping[str, Any]) -> None:
        self._checkpoint = checkpoint
        self._slices = slices
        self._last: tuple[str, Any] = ("", None)  # parts of one variable follow each other

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Shapes by name, partitioned variables whole."""
        shapes: dict[str, list[int]] = self._checkpoint.get_variable_to_shape_map()
        return shapes

    def get_variable_to_dtype_map(self) -> dict[str, Any]:
        """dtypes by name."""
        dtypes: dict[str, Any] = self._checkpoint.get_variable_to_dtype_map()
        return dtypes

    def get_tensor(self, name: str) -> np.ndarray:
        """Content of a variable or of a part; errors are those of TensorFlow's reader."""
        part = self._slices.get(name)
        if part is None:
            content: np.ndarray = self._checkpoint.get_tensor(name)
            return content
        if self._last[0] != part.full_name:
            self._last = (part.full_name, self._checkpoint.get_tensor(part.full_name))
        places = zip(part.var_offset, part.var_shape)
        content = self._last[1][tuple(slice(start, start + size) for start, size in places)]
        return content
