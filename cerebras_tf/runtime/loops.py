"""How loops run: the body's program once an iteration, on slices that are views.

An iteration writes its results where they belong: a slice of a y, or one of two places of a carry,
between which iterations alternate. Only results that the body does not compute itself are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Optional

import numpy as np

from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import ARENA, VIEW, Instruction, Program
from cerebras_tf.kernels.scratch import round_up
from cerebras_tf.ops.loops import Operands
from cerebras_tf.runtime.backend import Backend, Call
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.subprogram import Subprogram

Types = Sequence[TensorType]
_Out = Sequence[Optional[Array]]


def scanning(instruction: Instruction, backend: Backend, inputs: Types, outputs: Types) -> Call:
    """The call of `scan`.

    Raises:
        UnsupportedOpError: an op of the body has no kernel.
    """
    attrs = instruction.attrs
    operands, length, reverse = Operands.of(attrs), attrs["length"], attrs["reverse"]
    body = _Body(attrs["body"], backend, operands.carries, outputs)

    def call(arrays: Sequence[Array], out: _Out) -> Sequence[Array]:
        count, first, xs, consts = operands.split(arrays)
        carries: Sequence[Array] = first
        steps = min(max(int(count[0]), 0), length) if count else length
        ys = body.allocated(out[operands.carries :])
        for y in ys if steps < length else ():
            y[steps:] = 0
        with body.running(consts) as run:
            order = range(steps - 1, -1, -1) if reverse else range(steps)
            for number, at in enumerate(order):
                last = out if number == steps - 1 else None
                slices = [x[at, ...] for x in xs]
                carries = run(carries, slices, [y[at, ...] for y in ys], last)
            return [*_copied(carries, out), *ys]

    return call


def repeating(instruction: Instruction, backend: Backend, inputs: Types, outputs: Types) -> Call:
    """The call of `while`.

    Raises:
        UnsupportedOpError: an op of the condition or the body has no kernel.
    """
    attrs = instruction.attrs
    operands = Operands.of(attrs)
    body = _Body(attrs["body"], backend, operands.carries, outputs)
    cond = _Body(attrs["cond"], backend, operands.carries, [])

    def call(arrays: Sequence[Array], out: _Out) -> Sequence[Array]:
        _, first, _, consts = operands.split(arrays)
        carries: Sequence[Array] = first
        with cond.running(consts) as goes_on, body.running(consts) as run:
            while bool(goes_on(carries, (), (), None)[0]):
                carries = run(carries, (), (), None)
            return _copied(carries, out)

    return call


def _copied(carries: Sequence[Array], out: _Out) -> list[Array]:
    """The last carries where they are wanted."""
    made = []
    for value, target in zip(carries, out):
        if target is None:
            made.append(np.array(value))
        else:
            if value is not target:
                target[...] = value
            made.append(target)
    return made


# An iteration: carries, slices of xs, slices of ys, where the carries go if this is the last one.
_Run = Callable[
    [Sequence[Array], Sequence[Array], Sequence[Array], Optional[_Out]], Sequence[Array]
]


class _Body:
    """The program of a loop's region.

    Args:
        program: features are carries, slices of xs and consts; results are carries, slices of ys.
        carries: number of carries among the features.
        outputs: types of the loop's outputs; empty for a condition, which has no carries to keep.
    """

    def __init__(self, program: Program, backend: Backend, carries: int, outputs: Types) -> None:
        self._part, self._backend = Subprogram(program, backend), backend
        self._outputs = outputs
        self._features = [program.features[name] for name in program.features]
        self._results = [program.results[name] for name in program.results]
        self._count = carries if outputs else len(self._results)
        shown = {slot.base for slot in program.slots if slot.kind == VIEW}
        # Results that their instruction may write where they belong.
        self._written = {
            slot
            for slot in self._results
            if program.slots[slot].kind == ARENA
            and slot not in shown
            and self._results.count(slot) == 1
        }
        types = [program.slots[slot].type for slot in self._results[: self._count]]
        self._types = types if outputs else []

    def allocated(self, out: _Out) -> list[Array]:
        """The arrays of the ys; of sizes that the program does not plan they are new."""
        types = self._outputs[self._count :]
        return [
            np.empty(type.static_shape, type.storage_dtype) if array is None else array
            for array, type in zip(out, types)
        ]

    def running(self, consts: Sequence[Array]) -> _Running:
        """Context manager: runs iterations with these consts."""
        return _Running(self, consts)

    def places(self, stack: ExitStack) -> list[list[Optional[Array]]]:
        """Two places of every carry in scratch memory; None where its size is not known."""
        found: list[list[Optional[Array]]] = [[], []]
        sizes = [round_up(type.bytes) if type.is_static else 0 for type in self._types]
        if not sizes:
            return found
        memory = stack.enter_context(self._backend.scratch(2 * sum(sizes)))
        offset = 0
        for places in found:
            for type, size in zip(self._types, sizes):
                place = self._backend.place(memory, type, offset) if type.is_static else None
                places.append(place)
                offset += size
        return found


class _Running:
    """Runs iterations of a body as long as it is entered."""

    def __init__(self, body: _Body, consts: Sequence[Array]) -> None:
        self._body, self._consts = body, consts
        self._stack = ExitStack()

    def __enter__(self) -> _Run:
        body, stack = self._body, self._stack
        executor: Executor = stack.enter_context(body._part.placed())
        places = body.places(stack)
        stack.enter_context(np.errstate(all="ignore"))
        table, entries = executor.table, executor.active
        features, results, count = body._features, body._results, body._count
        first = len(features) - len(self._consts)
        for slot, array in zip(features[first:], self._consts):
            table[slot] = array
        # (number, slot) of the results that are written where they belong, and of the others.
        written = [(at, slot) for at, slot in enumerate(results) if slot in body._written]
        copied = [(at, slot) for at, slot in enumerate(results) if slot not in body._written]
        turn = 0

        def run(
            carries: Sequence[Array], xs: Sequence[Array], ys: Sequence[Array], last: Optional[_Out]
        ) -> Sequence[Array]:
            nonlocal turn
            turn = 1 - turn
            mine = places[turn]
            if last is not None:
                mine = [place if o is None else o for place, o in zip(mine, last)]
            targets = [*mine, *ys]
            for slot, array in zip(features, carries):
                table[slot] = array
            for slot, array in zip(features[count:], xs):
                table[slot] = array
            if targets:
                for at, slot in written:
                    table[slot] = targets[at]
            for loaded in entries:
                loaded.run(executor)
            if not targets:  # a condition
                return [table[slot] for slot in results]  # type: ignore[misc]
            for at, slot in copied:
                value, target = table[slot], targets[at]
                assert value is not None
                if target is None:
                    targets[at] = np.array(value)
                else:
                    target[...] = value
            return targets[:count]  # type: ignore[return-value]

        return run

    def __exit__(self, *error: object) -> None:
        self._stack.close()
