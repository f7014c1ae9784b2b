"""Streams variables between a store and the wafer and counts the bytes.

The wafer sees a layer's weights only between stream_in and the end of the layer. This file
deliberately does not decide when that is: the program's schedule does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np


class Store(Protocol):
    """What streaming needs of a store."""

    def get(self, name: str) -> np.ndarray:
        """The live array of a variable."""

    def put(self, name: str, content: np.ndarray) -> None:
        """Sets a variable."""


class MemoryX:
    """Serves weights and takes updates.

    Attributes:
        store: where variables rest.
        bytes_in: bytes streamed to the wafer so far.
        bytes_out: bytes streamed back so far.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.bytes_in = 0
        self.bytes_out = 0

    def stream_in(self, names: Sequence[str]) -> list[np.ndarray]:
        """Arrays of variables, in the order of the names; updates may be written into them."""
        arrays = [self.store.get(name) for name in names]
        self.bytes_in += sum(array.nbytes for array in arrays)
        return arrays

    def stream_out(self, stores: Iterable[tuple[str, np.ndarray]]) -> None:
        """Takes new values; one that was written in place needs no copy."""
        for name, content in stores:
            self.bytes_out += content.nbytes
            if content is not self.store.get(name):
                self.store.put(name, content)
