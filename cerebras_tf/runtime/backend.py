"""The protocol of a backend: kernels and memory. The loop over the schedule is the executor's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Optional, Protocol

from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import Cost, Instruction

# call(inputs, outputs): outputs are arrays to fill, or None where the result decides its shape. It
# returns the results, those of `outputs` where given.
Call = Callable[[Sequence[Array], Sequence[Optional[Array]]], Sequence[Array]]


class Backend(Protocol):
    """Kernels, and the memory that they work on."""

    def allocate(self, size: int) -> Array:
        """Memory for activations: uint8 [size], aligned.

        Raises:
            CapacityError: it does not fit.
        """

    def place(self, memory: Array, type: TensorType, offset: int) -> Array:
        """The array of a static type that lies `offset` bytes into the memory."""

    def constant(self, content: Array, dtype: str) -> Array:
        """The backend's array of a constant; `dtype` is that of the IR."""

    def upload(self, arrays: list[Array]) -> list[Array]:
        """The backend's arrays of host arrays; the same list where it works on host memory."""

    def download(self, array: Array) -> Array:
        """A copy of a backend array on the host."""

    def download_into(self, target: Array, source: Array) -> None:
        """target[...] = source, from the backend's memory to the host's."""

    def copy(self, target: Array, source: Array) -> None:
        """target[...] = source, of one shape and dtype, both in the backend's memory."""

    def load(
        self, instruction: Instruction, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> Call:
        """What runs an instruction on operands and results of these types.

        Raises:
            UnsupportedOpError: the op has no kernel.
        """

    def price(
        self,
        op: str,
        inputs: Sequence[TensorType],
        outputs: Sequence[TensorType],
        attrs: dict[str, Any],
    ) -> Cost:
        """What an instruction costs here, scratch memory included."""

    def scratch(self, size: int) -> AbstractContextManager[Array]:
        """Scratch memory, uint8 [size], for the time of the context."""

    def begin(self) -> None:
        """A step begins: resets the peak of scratch memory, and what a failed step left."""

    def peak_bytes(self) -> int:
        """The most scratch memory taken at once since begin."""
