"""The collectives of a step, in order, with their bytes, computed from its program.

    a copy of a variable, from its home along a chain:        its bytes, by all but the last wafer
    a mean that one wafer gets:                               its bytes, by all others
    a mean that all get (reduce-scatter, all-gather):         2 (N-1)/N of its bytes, by each
    a sum of small values, or rows that are concatenated:     N-1 times its bytes, by each

Through a tree, whose nodes add up and copy, a wafer sends what it gives once: its home a copy, all
but the one that gets it a mean for one, each a mean for all or a sum.

A variable is copied once for each time it is streamed, and once for neighbouring groups that both
use it (runtime/shared_store.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Union

from cerebras_tf.ir.program import Program
from cerebras_tf.ir.schedule import Entry, Free, OnWafer, Run, Share, StreamIn
from cerebras_tf.runtime.shared_store import PREFETCHED_GROUPS

COPY, MEAN, GATHER = "copy", "mean", "gather"
EVERYWHERE = -1
_GATHERED = ("wafer_sum", "wafer_concat", "wafer_pick")


@dataclass(frozen=True)
class Collective:
    """A collective starts.

    Attributes:
        kind: COPY, MEAN or GATHER.
        slot: what is sent.
        bytes: its size; of a GATHER, that of one wafer's part.
        wafer: the root of a copy or mean; EVERYWHERE if all wafers get the result.
    """

    kind: str
    slot: int
    bytes: int
    wafer: int = EVERYWHERE


@dataclass(frozen=True)
class Wait:
    """Computation waits for the collective of a slot, if one is pending."""

    slot: int


@dataclass(frozen=True)
class Work:
    """A run: its index in the schedule, and its wafer or EVERYWHERE."""

    number: int
    wafer: int


Event = Union[Collective, Wait, Work]


def events(program: Program) -> Iterator[Event]:
    """The collectives, waits and runs of a step, in the order of the schedule.

    Args:
        program: sizes with a bound are taken at the bound.
    """
    ahead = _Prefetch(program)
    names = {slot: name for name, slot in program.variables.items()}
    wafer, until = EVERYWHERE, -1
    for number, entry in enumerate(program.schedule):
        if isinstance(entry, OnWafer):
            wafer, until = entry.wafer, number + entry.count
        elif number <= until:
            if isinstance(entry, Run):
                yield Work(number, wafer)
        elif isinstance(entry, Run):
            yield from _events_of_run(program, number, entry)
        elif isinstance(entry, StreamIn):
            for slot in ahead.stream_in(entry):
                home = program.owners.get(names.get(slot, ""))
                if home is not None:
                    yield Collective(COPY, slot, _bytes(program, slot), home)
            for slot in entry.slots:
                yield Wait(slot)
        elif isinstance(entry, Free):
            ahead.free(entry)
        elif isinstance(entry, Share):
            for slot in [*entry.slots, *(program.variables[name] for name in entry.variables)]:
                yield Collective(COPY, slot, _bytes(program, slot), entry.wafer)
                yield Wait(slot)


def sent_bytes(program: Program, through_tree: bool = False) -> list[int]:
    """Bytes that each wafer sends in a step.

    Args:
        program: sizes with a bound are taken at the bound.
        through_tree: whether wafers send to a tree instead of to each other.

    Returns:
        Bytes by wafer; messages about data and checkpoints are left out.
    """
    wafers = program.wafers
    sent = [0] * wafers
    if wafers == 1:
        return sent
    for item in events(program):
        if isinstance(item, Collective):
            for place in range(wafers):
                wafer = (max(item.wafer, 0) + place) % wafers
                sent[wafer] += _sent_for(item, place, wafers, through_tree)
    return sent


def _sent_for(item: Collective, place: int, wafers: int, through_tree: bool) -> int:
    """Bytes that a wafer sends for a collective, by its distance from the root."""
    if item.kind == COPY:
        return item.bytes if place < (1 if through_tree else wafers - 1) else 0
    if item.kind == MEAN and item.wafer != EVERYWHERE:
        return item.bytes if place else 0
    if through_tree:
        return item.bytes
    others = wafers - 1
    return others * item.bytes if item.kind == GATHER else 2 * others * item.bytes // wafers


def local_acquisitions(program: Program, wafer: int) -> list[list[str]]:
    """Names that a step acquires from a wafer's own store, call by call.

    Variables that all wafers stream in are acquired one at a time, and are prefetched. Those that
    only this wafer streams in are acquired together.
    """
    ahead = _Prefetch(program)
    names = {slot: name for name, slot in {**program.variables, **program.staged}.items()}
    found = []
    owner, until = EVERYWHERE, -1
    for number, entry in enumerate(program.schedule):
        if isinstance(entry, OnWafer):
            owner, until = entry.wafer, number + entry.count
        elif number <= until:
            if isinstance(entry, StreamIn) and owner == wafer:
                found.append([names[slot] for slot in entry.slots])
        elif isinstance(entry, StreamIn):
            prefetched = [names[slot] for slot in ahead.stream_in(entry)]
            found += [[name] for name in prefetched if program.owners.get(name, wafer) == wafer]
        elif isinstance(entry, Free):
            ahead.free(entry)
    return found


class _Prefetch:
    """When a SharedStore fetches which variables."""

    def __init__(self, program: Program) -> None:
        self._within_step = set(program.staged.values())
        self._groups = _groups_of_all(program.schedule)
        self._users: Counter[int] = Counter()
        self._held: set[int] = set()
        self._used = self._prefetched = 0

    def stream_in(self, entry: StreamIn) -> Iterator[int]:
        """Slots that are fetched now: of this group, and of the groups that are prefetched.

        Values that live within a step may not be written yet, so they are not prefetched.
        """
        self._used += 1
        end = min(self._used + PREFETCHED_GROUPS, len(self._groups))
        is_ahead = self._used <= self._prefetched
        due = [slot for slot in entry.slots if not is_ahead or slot in self._within_step]
        for slots in self._groups[max(self._prefetched, self._used) : end]:
            due += [slot for slot in slots if slot not in self._within_step]
        for slot in due:
            self._users[slot] += 1
            if self._users[slot] == 1:
                yield slot
        self._prefetched = max(self._prefetched, end)
        self._held.update(entry.slots)

    def free(self, entry: Free) -> None:
        gone = self._held.intersection(entry.slots)
        self._users.subtract(gone)
        self._held -= gone


def _groups_of_all(entries: Sequence[Entry]) -> list[tuple[int, ...]]:
    """Slots of the groups that all wafers stream in, in order."""
    found, until = [], -1
    for number, entry in enumerate(entries):
        if isinstance(entry, OnWafer):
            until = number + entry.count
        elif number > until and isinstance(entry, StreamIn):
            found.append(entry.slots)
    return found


def _events_of_run(program: Program, number: int, entry: Run) -> Iterator[Event]:
    """A body waits for means before it runs, and starts its own after it."""
    body = program.bodies[entry.body]
    for item in body:
        if item.op == "mean_wait":
            yield Wait(entry.slots[item.inputs[0]])
    yield Work(number, EVERYWHERE)
    for item in body:
        if item.op == "mean_start":
            slot = entry.slots[item.outputs[0]]
            yield Collective(MEAN, slot, _bytes(program, slot), item.attrs["root"])
        elif item.op in _GATHERED:
            slots = [entry.slots[i] for i in item.inputs]
            yield Collective(GATHER, slots[0], sum(_bytes(program, slot) for slot in slots))


def _bytes(program: Program, slot: int) -> int:
    return program.slots[slot].type.max_bytes
