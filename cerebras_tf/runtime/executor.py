"""The machine: runs a program's schedule on arrays. The one loop there is.

Listeners are told of every step; tracing and cost models are listeners. It deliberately knows no
op: kernels are chosen once, when the program is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional, Protocol

import numpy as np

from cerebras_tf.errors import CapacityError
from cerebras_tf.ir.program import (
    ARENA,
    HEAP,
    VIEW,
    Free,
    Program,
    Run,
    Step,
    StreamIn,
    StreamOut,
)
from cerebras_tf.memoryx.stream import MemoryX
from cerebras_tf.runtime.dispatch import Call, choose

# Numba and BLAS kernels are at their best on whole cache lines.
ALIGNMENT_BYTES = 128
BoundBody = list[tuple[Call, tuple[int, ...], tuple[int, ...], tuple[bool, ...]]]


class Listener(Protocol):
    """Told of every schedule step, before and after it runs."""

    def before(self, step: Step) -> None:
        """The step is about to run."""

    def after(self, step: Step) -> None:
        """The step has run."""


class Machine:
    """A loaded program with its memory.

    Attributes:
        program: what runs.
        memoryx: where variables come from and go to.
        steps_run: steps made so far.
    """

    def __init__(
        self,
        program: Program,
        memoryx: MemoryX,
        listeners: Sequence[Listener] = (),
        arena: Optional[np.ndarray] = None,
    ) -> None:
        """Loads a program: binds the arena and chooses kernels.

        Args:
            program: what to run.
            memoryx: where variables come from and go to.
            listeners: told of every schedule step.
            arena: uint8 [at least program.arena_bytes]; allocated where not given.

        Raises:
            CapacityError: the arena does not fit in memory.
            UnsupportedOpError: an op has no kernel.
        """
        self.program = program
        self.memoryx = memoryx
        self.steps_run = 0
        self._listeners = list(listeners)
        self._table: list[Optional[np.ndarray]] = [None] * len(program.slots)
        self._names = {slot: name for name, slot in program.variables.items()}
        for index, content in program.constants.items():
            self._table[index] = content
        self.bind(self.allocate(program.arena_bytes) if arena is None else arena)
        self._bodies = self._bind_bodies()

    def bind(self, arena: np.ndarray) -> None:
        """Puts the activations into this memory from now on; nothing is kept from before."""
        self.arena = arena
        for index, slot in enumerate(self.program.slots):
            if slot.kind == ARENA:
                end = slot.offset + slot.type.bytes
                part = arena[slot.offset : end].view(slot.type.numpy_dtype)
                # Slots of the arena have static shapes.
                self._table[index] = part.reshape(slot.type.shape)  # type: ignore[arg-type]

    @staticmethod
    def allocate(size: int) -> np.ndarray:
        """uint8 [size], aligned; raises CapacityError where memory is short."""
        try:
            memory = np.empty(size + ALIGNMENT_BYTES, np.uint8)
        except MemoryError as error:
            raise CapacityError(
                f"activations: {size / 1e9:.1f} GB must fit in memory. Received: no memory. "
                "Lower train_input.batch_size or max_sequence_length."
            ) from error
        start = -memory.ctypes.data % ALIGNMENT_BYTES
        return memory[start : start + size]

    def run(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs one step.

        Args:
            features: an array for every feature of the program, of the slot's dtype and shape.

        Returns:
            The wanted values, by name; copies, so the next step may overwrite its memory.
        """
        table = self._table
        for name, slot in self.program.features.items():
            table[slot] = features[name]
        with np.errstate(all="ignore"):
            for step in self.program.steps:
                for listener in self._listeners:
                    listener.before(step)
                self._apply(step)
                for listener in self._listeners:
                    listener.after(step)
        self.steps_run += 1
        return {name: np.array(self._read(slot)) for name, slot in self.program.results.items()}

    def _apply(self, step: Step) -> None:
        table = self._table
        if isinstance(step, Run):
            slots = step.slots
            for call, inputs, outputs, fresh in self._bodies[step.body]:
                arrays = [table[slots[i]] for i in inputs]
                out = [None if new else table[slots[i]] for i, new in zip(outputs, fresh)]
                results = call(arrays, out)  # type: ignore[arg-type]
                for i, new, result in zip(outputs, fresh, results):
                    if new:
                        table[slots[i]] = result
        elif isinstance(step, StreamIn):
            weights = self.memoryx.stream_in([self._names[slot] for slot in step.slots])
            for slot, array in zip(step.slots, weights):
                table[slot] = array
        elif isinstance(step, StreamOut):
            self.memoryx.stream_out((name, self._read(slot)) for name, slot in step.stores)
        elif isinstance(step, Free):
            for slot in step.slots:
                table[slot] = None

    def _read(self, slot: int) -> np.ndarray:
        array = self._table[slot]
        if array is None:  # a variable that was streamed out again
            (array,) = self.memoryx.stream_in([self._names[slot]])
        return array

    def _bind_bodies(self) -> list[BoundBody]:
        first: dict[int, tuple[int, ...]] = {}
        for step in self.program.steps:
            if isinstance(step, Run):
                first.setdefault(step.body, step.slots)
        bound = []
        for index, body in enumerate(self.program.bodies):
            slots = [self.program.slots[slot] for slot in first[index]]
            calls: BoundBody = []
            for item in body:
                call = choose(
                    item,
                    [slots[i].type for i in item.inputs],
                    [slots[i].type for i in item.outputs],
                )
                fresh = tuple(slots[i].kind in (HEAP, VIEW) for i in item.outputs)
                calls.append((call, item.inputs, item.outputs, fresh))
            bound.append(calls)
        return bound
