"""Programs within an instruction, loaded once, run in scratch memory; how a conditional runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Optional

import numpy as np

from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import Instruction, Program
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.runtime.backend import Backend, Call
from cerebras_tf.runtime.dispatch import unshared
from cerebras_tf.runtime.executor import Executor


def conditional(
    instruction: Instruction,
    backend: Backend,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
) -> Call:
    """The call of `cond`: predicate and operands in, the results of the branch it chooses out.

    Args:
        instruction: its attributes `then` and `orelse` are programs, whose features are the
            operands in order.
        backend: runs them.
        inputs: types of predicate and operands.
        outputs: types of the results.

    Raises:
        UnsupportedOpError: an op of a branch has no kernel.
    """
    then, orelse = (Subprogram(instruction.attrs[key], backend) for key in ("then", "orelse"))

    def call(arrays: Sequence[Array], out: Sequence[Optional[Array]]) -> Sequence[Array]:
        predicate, *operands = arrays
        return (then if bool(predicate) else orelse).run(operands, out)

    return call


class Subprogram:
    """A loaded program, whose activations lie in scratch memory at every call."""

    def __init__(self, program: Program, backend: Backend) -> None:
        self._backend = backend
        with backend.scratch(program.arena_bytes) as memory:
            self._executor = Executor(program, MemoryStore([]), backend, arena=memory)
            self._address = _address(memory)

    @contextmanager
    def placed(self) -> Iterator[Executor]:
        """Context manager: the executor, its activations in scratch memory."""
        executor = self._executor
        with self._backend.scratch(executor.program.arena_bytes) as memory:
            if _address(memory) != self._address:
                executor.bind(memory)
                self._address = _address(memory)
            yield executor

    def run(self, operands: Sequence[Array], out: Sequence[Optional[Array]]) -> list[Array]:
        """Runs it once; the results are in `out` or, where it has None, in new arrays."""
        with self.placed() as executor:
            executor.start(dict(zip(executor.program.features, operands)))
            executor.execute(executor.entries)
            made = [executor.value(name) for name in executor.program.results]
            if len(made) > 1:  # a result that is an operand may lie where another one goes
                made = [unshared(value, operands) for value in made]
            return [_placed(value, target) for value, target in zip(made, out)]


def _address(memory: Array) -> int:
    address: int = memory.__array_interface__["data"][0]
    return address


def _placed(value: Array, target: Optional[Array]) -> Array:
    if target is None:
        return np.array(value)
    target[...] = value
    return target
