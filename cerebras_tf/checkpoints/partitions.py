"""Partitioned variables in checkpoints, under the name of the whole, as TensorFlow's Saver has it.

On the wafer and in the session, every part is a variable of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

import numpy as np

from cerebras_tf.bundle.index import TensorSlice

# A variable's name, or (name of the whole, slice) of a part, as SaveV2 takes them.
Key = Union[str, tuple[str, str]]


class Partitions:
    """Maps the parts of partitioned variables to slices in a checkpoint.

    Attributes:
        slices: the slice of a whole variable that each part is, by the part's name.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        # Private API of TensorFlow, which Saver reads too. The slots of a part have one as well.
        found = {name: variable._get_save_slice_info() for name, variable in variables.items()}
        self._infos = {name: info for name, info in found.items() if info is not None}
        self.slices = {
            name: TensorSlice(
                info.full_name,
                tuple(info.full_shape),
                tuple(info.var_offset),
                tuple(info.var_shape),
            )
            for name, info in self._infos.items()
        }

    def by_key(self, arrays: Mapping[str, np.ndarray]) -> dict[Key, np.ndarray]:
        """Arrays by variable name, with the keys of a checkpoint."""
        infos = self._infos
        return {
            (infos[name].full_name, infos[name].spec) if name in infos else name: array
            for name, array in arrays.items()
        }

    def name_of_whole(self, name: str) -> str:
        """Name in a checkpoint of a variable, or of the whole that it is a part of."""
        return self.slices[name].name if name in self.slices else name

    def whole(self, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Names and shapes of variables in a checkpoint."""
        return {
            self.name_of_whole(name): list(self.slices[name].shape)
            if name in self.slices
            else shape
            for name, shape in shapes.items()
        }

    def reader(self, checkpoint: Any) -> PartReader:
        """A checkpoint reader that also reads parts."""
        return PartReader(checkpoint, self.slices)


class PartReader:
    """A checkpoint reader that returns a part under the part's own name."""

    def __init__(self, checkpoint: Any, slices: Mapping[str, TensorSlice]) -> None:
        self._checkpoint = checkpoint
        self._slices = slices
        self._last: tuple[str, Any] = ("", None)  # the parts of a variable are read sequentially

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def get_tensor(self, name: str) -> np.ndarray:
        """Content of a variable or a part; raises the errors of TensorFlow's reader."""
        part = self._slices.get(name)
        if part is None:
            content: np.ndarray = self._checkpoint.get_tensor(name)
            return content
        if self._last[0] != part.name:
            self._last = (part.name, self._checkpoint.get_tensor(part.name))
        extents = zip(part.start, part.size)
        content = self._last[1][tuple(slice(start, start + size) for start, size in extents)]
        return content
