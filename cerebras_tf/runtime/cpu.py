"""The backend of the host's own cores: NumPy arrays, compiled kernels, scratch memory a thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Optional

import numpy as np

from cerebras_tf import environment
from cerebras_tf.errors import CapacityError
from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import Cost, Instruction
from cerebras_tf.kernels import blas, cpu_kernels, scratch
from cerebras_tf.kernels.compiled_threads import num_threads
from cerebras_tf.kernels.half_precision import to_storage
from cerebras_tf.kernels.registry import KernelTable
from cerebras_tf.ops.cost import price
from cerebras_tf.runtime.backend import Call
from cerebras_tf.runtime.collectives import CollectiveCalls
from cerebras_tf.runtime.dispatch import choose, needed_scratch
from cerebras_tf.runtime.loops import repeating, scanning
from cerebras_tf.runtime.subprogram import conditional
from cerebras_tf.swarmx.swarm import Alone, Swarm

# How an instruction of a structural op runs, by op; see ops.registry.Structure.
STRUCTURAL = {"cond": conditional, "scan": scanning, "while": repeating}


class CpuBackend:
    """Runs instructions on the host's cores, with the fastest kernels there are.

    Args:
        swarm: the wafers that run the same program; None for this one alone.
        kernels: what to choose kernels from; None for all that there are.
        threads: of the kernels, for prices; None for those of this process.

    Raises:
        ConfigError: CEREBRAS_TF_ISA or CEREBRAS_TF_SGEMM has no known name, whether or not the
            program has products that it is of.
    """

    def __init__(
        self,
        swarm: Optional[Swarm] = None,
        kernels: Optional[KernelTable] = None,
        threads: Optional[int] = None,
    ) -> None:
        environment.ISA.get()
        blas.forced()
        self._kernels = cpu_kernels() if kernels is None else kernels
        self._collectives = CollectiveCalls(swarm or Alone())
        self._threads = threads

    def allocate(self, size: int) -> Array:
        try:
            return scratch.aligned(size)
        except MemoryError as error:
            raise CapacityError(
                f"activations: must fit in memory. Received: {size / 1e9:.1f} GB, which the "
                "operating system does not provide. Lower batch_size or max_sequence_length."
            ) from error

    def place(self, memory: Array, type: TensorType, offset: int) -> Array:
        placed: Array = np.ndarray(type.static_shape, type.storage_dtype, memory, offset)
        return placed

    def load(
        self, instruction: Instruction, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> Call:
        if instruction.op in STRUCTURAL:
            return STRUCTURAL[instruction.op](instruction, self, inputs, outputs)
        if self._collectives.handles(instruction.op):
            return self._collectives.load(instruction)
        return choose(instruction, inputs, outputs, self._kernels)

    def price(
        self,
        op: str,
        inputs: Sequence[TensorType],
        outputs: Sequence[TensorType],
        attrs: dict[str, Any],
    ) -> Cost:
        cost = price(op, inputs, outputs, attrs)
        if op in STRUCTURAL:
            return cost
        needed = needed_scratch(self._kernels, op, inputs, outputs, attrs)
        threads = self._threads or num_threads()
        return replace(cost, scratch_bytes=needed.shared + needed.per_thread * threads)

    def scratch(self, size: int) -> AbstractContextManager[Array]:
        return scratch.borrow((size,), np.uint8)

    def copy(self, target: Array, source: Array) -> None:
        target[...] = source

    def download_into(self, target: Array, source: Array) -> None:
        target[...] = source

    def download(self, array: Array) -> Array:
        return np.array(array)

    def upload(self, arrays: list[Array]) -> list[Array]:
        return arrays

    def constant(self, content: Array, dtype: str) -> Array:
        return to_storage(content, dtype)

    def begin(self) -> None:
        scratch.reset_peak()
        self._collectives.finish()

    def peak_bytes(self) -> int:
        return scratch.peak_bytes()
