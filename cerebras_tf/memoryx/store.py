"""Where weights and optimizer state rest between steps.

A store holds arrays by variable name. This one keeps them in memory; stores on disk have the same
methods. It deliberately knows no order of layers: streaming does.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cerebras_tf.errors import CapacityError, CheckpointError
from cerebras_tf.ir import TensorType, Variable


class MemoryStore:
    """Arrays in main memory.

    Attributes:
        specs: what each variable is, by name.
    """

    def __init__(self, specs: Iterable[Variable]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self._arrays: dict[str, np.ndarray] = {}

    def put(self, name: str, content: np.ndarray) -> None:
        """Sets a variable, in its own dtype; raises CheckpointError where the shape differs."""
        type = self.specs[name].type
        if tuple(content.shape) != type.shape:
            raise CheckpointError(
                f"variable {name}: shape must be {list(type.shape)}. "
                f"Received: {list(content.shape)}. Use a checkpoint of the same model."
            )
        self._arrays[name] = self._own(name, type, content)

    def _own(self, name: str, type: TensorType, content: np.ndarray) -> np.ndarray:
        held = self._arrays.get(name)
        try:
            if held is None:
                held = np.empty(content.shape, type.numpy_dtype)
            held[...] = content
        except MemoryError as error:
            raise CapacityError(
                f"variable {name}: {type.bytes} bytes must fit in memory. Received: no memory. "
                "Use a smaller model or a machine with more memory."
            ) from error
        return held

    def get(self, name: str) -> np.ndarray:
        """The live array of a variable; writing into it changes the variable."""
        if name not in self._arrays:
            raise CheckpointError(
                f"variable {name}: must have a value before the first step. Received: none. "
                "Initialise the model or restore a checkpoint that holds it."
            )
        return self._arrays[name]

    def holds(self, name: str) -> bool:
        """Whether the variable has a value."""
        return name in self._arrays

    @property
    def bytes(self) -> int:
        """Bytes of all variables, set or not."""
        return sum(spec.type.bytes for spec in self.specs.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of the variables that are set."""
        return sum(array.nbytes for array in self._arrays.values())
