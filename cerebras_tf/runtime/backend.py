"""What a machine is made of: the protocol that every backend implements.

A backend owns its kernels and its memory. Whoever runs programs elsewhere (another processor,
another process) writes one of these; the loop over the schedule stays the executor's.
"""

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
            CapacityError: there is no room for it.
        """

    def place(self, memory: Array, type: TensorType, offset: int) -> Array:
        """The array of a static type that lies `offset` bytes into the memory."""

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

    def borrow(self, size: int) -> AbstractContextManager[Array]:
        """Scratch memory, uint8 [size], for the time of the context."""

    def copy(self, target: Array, source: Array) -> None:
        """target[...] = source, of one shape and dtype."""

    def copied(self, array: Array) -> Array:
        """An array of its own with the same content."""

    def begin(self) -> None:
        """A step begins: forgets the mark of scratch memory, and what a step that failed left."""

    def peak_bytes(self) -> int:
        """The most scratch memory taken at once since begin."""
