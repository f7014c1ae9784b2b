"""A backend without arithmetic: it runs the same schedule and reports the same bytes.

Its arrays have shapes and dtypes and one element of memory: plans and predictions of programs that
do not fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Optional

import numpy as np

from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import Cost, Instruction
from cerebras_tf.kernels.half_precision import to_storage
from cerebras_tf.runtime.backend import Backend, Call


def stand_in(type: TensorType) -> Array:
    """An array of a type that holds one zero; sizes known only at run time are taken as 1."""
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in type.shape)
    array = np.zeros((), type.storage_dtype)
    return np.lib.stride_tricks.as_strided(array, shape, (0,) * len(shape), writeable=False)


class NullBackend:
    """Runs no instruction.

    Args:
        of: the backend whose prices it reports.
    """

    def __init__(self, of: Backend) -> None:
        self._of = of
        self._peak_bytes = 0

    def allocate(self, size: int) -> Array:
        return stand_in(TensorType("uint8", (size,)))

    def place(self, memory: Array, type: TensorType, offset: int) -> Array:
        return stand_in(type)

    def load(
        self, instruction: Instruction, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> Call:
        results = [stand_in(type) for type in outputs]

        def call(arrays: Sequence[Array], out: Sequence[Optional[Array]]) -> Sequence[Array]:
            self._peak_bytes = max(self._peak_bytes, instruction.cost.scratch_bytes)
            return results

        return call

    def price(
        self,
        op: str,
        inputs: Sequence[TensorType],
        outputs: Sequence[TensorType],
        attrs: dict[str, Any],
    ) -> Cost:
        return self._of.price(op, inputs, outputs, attrs)

    def scratch(self, size: int) -> AbstractContextManager[Array]:
        return nullcontext(self.allocate(size))

    def copy(self, target: Array, source: Array) -> None:
        """Nothing: there is no content."""

    def download_into(self, target: Array, source: Array) -> None:
        """Nothing: there is no content."""

    def download(self, array: Array) -> Array:
        """The array itself."""
        return array

    def upload(self, arrays: list[Array]) -> list[Array]:
        return arrays

    def constant(self, content: Array, dtype: str) -> Array:
        return to_storage(content, dtype)

    def begin(self) -> None:
        self._peak_bytes = 0

    def peak_bytes(self) -> int:
        return self._peak_bytes
