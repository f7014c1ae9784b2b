"""Runs compiled programs in tests, and walks them without computing.

`check_schedule` is the abstract executor: it knows which slots hold something readable and nothing
of their contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Union

import numpy as np

from cerebras_tf.ir import StepGraph, Variable
from cerebras_tf.ir.program import ARENA, CONSTANT, FEATURE, VARIABLE, VIEW, Program
from cerebras_tf.ir.schedule import Free, Run, StreamIn, StreamOut
from cerebras_tf.memoryx.store import MemoryStore, Store, reading, write
from cerebras_tf.runtime.client import ProgramSource, SavedProgram, SessionClient
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.session import Session
from tests.steps import Arrays


def run_program(
    program: Program, step: StepGraph, variables: Arrays, steps: Sequence[Arrays]
) -> tuple[Arrays, Arrays]:
    """Results of the last step and variables after it."""
    store = store_of(step.specs.values(), variables)
    executor = Executor(program, store, CpuBackend())
    executor.arena[:] = 0xFF  # what is read before it is written is NaN
    results: Arrays = {}
    for features in steps:
        results = executor.run(features)
    return results, contents(store)


def client_of(source: Union[ProgramSource, Program], store: Store, backend=None, **given):
    """The client of a session in this process, for a source of programs or for one program."""
    session = Session(store, backend or CpuBackend(), **given)
    return SessionClient(session, SavedProgram(source) if isinstance(source, Program) else source)


def store_of(specs: Iterable[Variable], values: Arrays) -> MemoryStore:
    """A store with values for its variables."""
    store = MemoryStore(specs)
    for name, content in values.items():
        write(store, name, content)
    return store


def contents(store: Store) -> Arrays:
    """Copies of all variables."""
    return {name: content_of(store, name) for name in store.specs}


def variables_of(client: SessionClient) -> Arrays:
    """Copies of all variables of a session."""
    return {name: client.session.get(name) for name in client.session.specs}


def content_of(store: Store, name: str) -> np.ndarray:
    """A copy of one variable."""
    with reading(store, name) as array:
        return np.array(array)


def check_schedule(program: Program) -> None:
    """Asserts that every slot read holds its value: it came or was made, and nothing replaced it.

    Also: what is freed was there, variables leave at most once, only variables stream in, arena
    slots lie inside the arena, and the life of each begins where it is written.
    """
    slots = program.slots
    _check_lives(program)
    readable = {i for i, slot in enumerate(slots) if slot.kind in (FEATURE, CONSTANT)}
    made = set(readable)
    left: list[str] = []
    for slot in slots:
        if slot.kind == ARENA:
            assert slot.offset >= 0 and slot.offset + slot.type.bytes <= program.arena_bytes
    for step in program.schedule:
        if isinstance(step, StreamIn):
            assert all(slots[i].kind == VARIABLE for i in step.slots), step
            readable.update(step.slots)
            made.update(step.slots)
        elif isinstance(step, Run):
            _check_run(program, step, readable)
            made.update(step.slots)
        elif isinstance(step, StreamOut):
            for name, slot in step.stores:
                assert slot in readable or slots[slot].kind == VARIABLE, (name, slot)
                left.append(name)
        else:
            assert isinstance(step, Free)
            assert set(step.slots) <= made, f"freed twice or never made: {step}"
            made.difference_update(step.slots)
            readable.difference_update(step.slots)
    assert len(left) == len(set(left))
    for name, slot in program.results.items():
        assert slot in readable or slots[slot].kind == VARIABLE, f"result {name} is lost"


def _check_lives(program: Program) -> None:
    """Asserts that arena slots begin to live in the order in which they are written."""
    time, seen = -1, set()
    for step in program.schedule:
        if isinstance(step, Run):
            for item in program.bodies[step.body]:
                for i in item.outputs:
                    slot = program.slots[step.slots[i]]
                    if slot.kind == ARENA and step.slots[i] not in seen:  # else written over
                        seen.add(step.slots[i])
                        assert slot.life[0] >= time, f"{item.op}: {slot} lives too late or early"
                        time = slot.life[0]


def _check_run(program: Program, run: Run, readable: set[int]) -> None:
    slots = program.slots
    for item in program.bodies[run.body]:
        for i in item.inputs:
            slot = run.slots[i]
            assert slot in readable, f"{item.op} reads slot {slot} ({slots[slot]}) in {run}"
        for i in item.outputs:
            slot = run.slots[i]
            if slots[slot].kind == VARIABLE:
                assert slot in readable, f"{item.op} writes {slots[slot]} that is not here"
            if slots[slot].kind == ARENA:
                readable.difference_update(_overwritten(program, slot))
            readable.add(slot)


def _overwritten(program: Program, slot: int) -> set[int]:
    """Slots whose bytes lie where this arena slot's do, views of them included."""
    slots = program.slots
    start, end = slots[slot].offset, slots[slot].offset + slots[slot].type.bytes
    hit = {
        i
        for i, other in enumerate(slots)
        if other.kind == ARENA
        and i != slot
        and other.offset < end
        and start < other.offset + other.type.bytes
    }
    for i, other in enumerate(slots):  # a view's base has a smaller number
        if other.kind == VIEW and (other.base in hit or other.base == slot):
            hit.add(i)
    return hit
