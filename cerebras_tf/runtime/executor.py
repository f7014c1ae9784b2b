"""The machine: runs a program's schedule on arrays. The one loop there is.

Listeners are told of every step; traces and cost models are listeners. Kernels are chosen once,
when the program is loaded.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol

import numpy as np

from cerebras_tf.ir import Array, Variable
from cerebras_tf.ir.program import ARENA, HEAP, VIEW, Program
from cerebras_tf.ir.schedule import Entry, Free, OnWafer, Run, Share, StreamIn, StreamOut
from cerebras_tf.kernels.half_precision import to_storage
from cerebras_tf.memoryx.store import Store, reading
from cerebras_tf.runtime.backend import Backend, Call
from cerebras_tf.runtime.collective_plan import acquired_here
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.runtime.sizes import PlacedInstruction, SizedParts
from cerebras_tf.swarmx.swarm import Alone, Swarm

_Table = list[Optional[Array]]
_BYTES_OF = operator.attrgetter("nbytes")
_View = tuple[int, int, int, int]  # body and number of the instruction; slots it reads and writes
# Of an instruction: what takes its operands, what takes its results' memory, which results are new.
_Places = tuple[Callable[[_Table], Any], Callable[[_Table], Any], list[tuple[int, int]]]


class Listener(Protocol):
    """Told of every schedule step, before and after it runs."""

    def begin(self, program: Program) -> None:
        """A step of training or evaluation is about to run the program's schedule."""

    def before(self, step: Entry) -> None:
        """The step is about to run."""

    def after(self, step: Entry) -> None:
        """The step has run."""


class Machine:
    """A loaded program with its memory; the actions of schedule steps are its methods.

    Attributes:
        plan: the program that it was given, symbols and all.
        sizes: numbers of its symbols, by name.
        store: where variables come from and go to.
        backend: kernels and memory.
        arena: uint8, the activation memory.
        bytes_in: bytes of variables streamed in so far.
        bytes_out: bytes of new values streamed out so far.
        scratch_bytes: the most scratch memory that kernels took at once.
        acquisitions: names of the groups of variables that a step streams in, in order; with
            several wafers of those that all stream in.
        held_together: names of all that the store must hold at once, with what is staged then.
    """

    def __init__(
        self,
        program: Program,
        store: Store,
        backend: Backend,
        listeners: Sequence[Listener] = (),
        arena: Optional[Array] = None,
        swarm: Optional[Swarm] = None,
        sizes: Optional[Mapping[str, int]] = None,
    ) -> None:
        """Loads a program: binds the arena and chooses kernels.

        Args:
            program: what to run.
            store: where variables come from and go to.
            backend: kernels and memory.
            listeners: told of every schedule step.
            arena: uint8 [at least program.arena_bytes]; allocated where not given.
            swarm: the wafers that run it together; None for this one alone.
            sizes: number for every symbol of the program, by name.

        Raises:
            CapacityError: the arena does not fit in memory.
            GraphError: a symbol has no size, or one beyond its bound.
            UnsupportedOpError: an op has no kernel.
        """
        self.plan, self.sizes = program, dict(sizes or {})
        self.store, self.backend = store, backend
        self.bytes_in = self.bytes_out = self.scratch_bytes = 0
        self._listeners = list(listeners)
        self._table: list[Optional[Array]] = [None] * len(program.slots)
        places = {**program.variables, **program.staged}
        self._names = {slot: name for name, slot in places.items()}
        self._moved, self._stored = self._find_moved(), self._find_stored()
        self._swarm = swarm or Alone()
        self._here = store.here if isinstance(store, SharedStore) else store
        self._stores = [store] if self._here is store else [store, self._here]
        self._alone = self._skipped = 0  # steps from here on that only this wafer, or another, runs
        self._held: list[set[str]] = [set() for _ in self._stores]  # variables acquired now
        self._dirty: set[str] = set()  # those among them that were written
        for index, content in program.constants.items():
            self._table[index] = to_storage(content, program.slots[index].type.dtype)
        self.acquisitions = [
            self._moved[id(step)] for step in _of_all(program.steps) if isinstance(step, StreamIn)
        ]
        self.held_together = self._find_held_together()
        self._kept, self._kept_bytes = self._find_kept()
        store.reserve(
            Variable(name, program.slots[slot].type) for name, slot in program.staged.items()
        )
        self._parts = SizedParts(program)
        self._types = self._parts.types(self.sizes)
        self._calls = self._load_bodies()
        self._places, self._standing = self._find_places()
        self._freed = self._find_freed()
        self._steps = self._find_steps()
        self._runs = self._find_runs()
        if arena is None:
            arena = self.backend.allocate(program.arena_bytes)
        self.bind(arena)

    def resized(self, sizes: Mapping[str, int]) -> Machine:
        """One for other sizes, in the same memory: what no size concerns is not loaded again.

        Args:
            sizes: number for every symbol of the program, by name.

        Raises:
            GraphError: a symbol has no size, or one beyond its bound.
        """
        other = copy.copy(self)
        other.__dict__.pop("program", None)
        other.sizes = dict(sizes)
        other.bytes_in = other.bytes_out = other.scratch_bytes = 0
        other._held, other._dirty = [set() for _ in self._stores], set()
        other._types = self._parts.types(other.sizes)
        other._table = list(self._table)
        for slot in self._parts.slots:
            other._place(slot)
        other._calls = [list(calls) for calls in self._calls]
        for placed in self._parts.sized:
            other._calls[placed.body][placed.at] = other._load(placed)
        other._runs = other._find_runs()
        other._look()
        return other

    @functools.cached_property
    def program(self) -> Program:
        """What runs: the program with numbers for its sizes."""
        if not self.sizes:
            return self.plan
        return self.plan.at(self.sizes, self.backend.price)

    @functools.cached_property
    def acquisitions_here(self) -> list[list[str]]:
        """With several wafers, names that this one's own store is asked for, call by call."""
        return acquired_here(self.plan, self._swarm.rank)

    def _find_moved(self) -> dict[int, list[str]]:
        """Names of the variables that a step takes or gives back, by the step's identity."""
        return {
            id(step): [
                self._names[slot]
                for slot in step.slots
                if isinstance(step, StreamIn) or slot in self._names
            ]
            for step in self.plan.steps
            if isinstance(step, (StreamIn, Free))
        }

    def _find_stored(self) -> dict[int, tuple[list[str], int, list[tuple[str, int]]]]:
        """Of a step that gives new values: names written in place, their bytes, and the others."""
        program, found = self.plan, {}
        for step in program.steps:
            if isinstance(step, StreamOut):
                in_place = [
                    pair for pair in step.stores if program.variables.get(pair[0]) == pair[1]
                ]
                size = sum(program.slots[slot].type.most_bytes for _, slot in in_place)
                others = [pair for pair in step.stores if pair not in in_place]
                found[id(step)] = ([name for name, _ in in_place], size, others)
        return found

    def _find_kept(self) -> tuple[dict[str, int], int]:
        """Slots of variables, by name, that stay acquired for a whole step; bytes streamed in then.

        Where the store's memory stays anyway, that is all that the step reads; otherwise none.
        """
        kept, written, size = dict[str, int](), set[str](), 0
        if not self.store.stays:
            return kept, size
        for step in self.plan.steps:
            if isinstance(step, (OnWafer, Share)):
                return {}, 0
            if isinstance(step, StreamIn):
                kept.update((self._names[slot], slot) for slot in step.slots)
                size += sum(self.plan.slots[slot].type.most_bytes for slot in step.slots)
            elif isinstance(step, StreamOut):
                written.update(name for name, _ in step.stores if name not in kept)
        # What is read after it was written may have its first value then.
        return ({}, 0) if written.intersection(kept) else (kept, size)

    def _find_held_together(self) -> list[list[str]]:
        found, held = [], set[int]()
        for step in self.plan.steps:
            if isinstance(step, StreamIn):
                held.update(step.slots)
                found.append([self._names[slot] for slot in held])
            elif isinstance(step, StreamOut):
                here = [self._names[slot] for slot in held]
                found.extend([*here, name] for name, _ in step.stores if name not in here)
            elif isinstance(step, Free):
                held.difference_update(step.slots)
        return found

    def bind(self, arena: Array) -> None:
        """Puts the activations into this memory from now on; nothing is kept from before."""
        self.arena = arena
        for index in range(len(self._table)):
            self._place(index)
        self._look()

    def _look(self) -> None:
        """Makes the views that stand as long as the activations' memory does."""
        table = self._table
        for body, at, source, slot in self._standing:
            seen = table[source]
            assert seen is not None  # constant, or in this memory
            (table[slot],) = self._calls[body][at]((seen,), (None,))

    def _place(self, index: int) -> None:
        slot = self.plan.slots[index]
        if slot.kind == ARENA:
            self._table[index] = self.backend.place(self.arena, self._types[index], slot.offset)

    def unbind(self) -> None:
        """Lets go of the activations' memory until it is bound again."""
        self.arena = np.empty(0, np.uint8)
        for index, slot in enumerate(self.plan.slots):
            if slot.kind == ARENA:
                self._table[index] = None
        for _, _, _, index in self._standing:
            self._table[index] = None

    def run(self, features: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one step.

        Args:
            features: an array for every feature of the program, of the slot's storage dtype and
                shape.

        Returns:
            The wanted values, by name; copies, so the next step may overwrite its memory.
        """
        self.backend.begin()
        try:
            self.execute(features)
            self.scratch_bytes = max(self.scratch_bytes, self.backend.peak_bytes())
            return {
                name: self.backend.copied(self._read(slot))
                for name, slot in self.plan.results.items()
            }
        finally:
            self._release(list(self._kept) if self._kept else sorted(set().union(*self._held)))

    def execute(self, features: Mapping[str, Array]) -> None:
        """Runs the schedule; values stay where they were made, and variables acquired."""
        self._alone = self._skipped = 0  # the step before may have ended early
        for name, slot in self.plan.features.items():
            self._table[slot] = features[name]
        for listener in self._listeners:
            listener.begin(self.program)
        if self._kept:
            self._acquire(self.store, list(self._kept), self._kept.values())
            self.bytes_in += self._kept_bytes
        with np.errstate(all="ignore"):
            for step in self.plan.steps if self._listeners else self._steps:
                if self._skipped:
                    self._skipped -= 1
                    continue
                for listener in self._listeners:
                    listener.before(step)
                step.apply(self)
                for listener in self._listeners:
                    listener.after(step)
                if self._alone:
                    self._alone -= 1

    def value(self, name: str) -> Array:
        """A wanted value of the last step where it was made; the next step overwrites it."""
        return self._read(self.plan.results[name])

    # Actions of schedule steps.

    def compute(self, step: Run) -> None:
        """Runs a body on its slots."""
        table = self._table
        for call, take, place, made in self._runs[id(step)]:
            results = call(take(table), place(table))
            for at, slot in made:
                table[slot] = results[at]

    def stream_in(self, step: StreamIn) -> None:
        """Acquires variables, where they are not kept."""
        if not self._kept:
            store = self._here if self._alone else self.store
            arrays = self._acquire(store, self._moved[id(step)], step.slots)
            self.bytes_in += sum(map(_BYTES_OF, arrays))

    def _acquire(self, store: Store, names: Sequence[str], slots: Iterable[int]) -> list[Array]:
        arrays, table = store.acquire(names), self._table
        self._held[-1 if store is self._here else 0].update(names)
        for slot, array in zip(slots, arrays):
            table[slot] = array
        return arrays

    def stream_out(self, step: StreamOut) -> None:
        """Notes what was written in place; copies other new values to where they belong."""
        in_place, size, others = self._stored[id(step)]
        self._dirty.update(in_place)
        self.bytes_out += size
        for name, slot in others:
            made = self._read(slot)
            self.bytes_out += made.nbytes
            if any(name in held for held in self._held):
                target = self._table[self.plan.variables[name]]
                assert target is not None
                self.backend.copy(target, made)
                self._dirty.add(name)
            else:
                store = self._here if self._alone else self.store
                (target,) = store.acquire([name], fresh=True)
                self.backend.copy(target, made)
                store.release([name], dirty=[name])

    def free(self, step: Free) -> None:
        """Forgets slots, and releases the variables among them, where they are not kept."""
        table = self._table
        for slot in self._freed[id(step)]:
            table[slot] = None
        if not self._kept:
            self._release(self._moved[id(step)])

    def on_wafer(self, step: OnWafer) -> None:
        """Leaves out what another wafer runs; what this one runs alone uses what it keeps."""
        if step.wafer == self._swarm.rank:
            self._alone = step.count + 1
        else:
            self._skipped = step.count

    def share(self, step: Share) -> None:
        """Sends, or receives, what one wafer has made."""
        on_their_way = []
        for slot in step.slots:
            array = self._table[slot]
            assert array is not None
            on_their_way.append(self._swarm.start_copy(array, step.wafer))
        for pending in on_their_way:
            pending.wait()
        if isinstance(self.store, SharedStore):
            for name in step.variables:
                self.store.share(name, step.wafer)

    def _release(self, names: Sequence[str]) -> None:
        dirty = self._dirty
        for store, held in zip(self._stores, self._held):
            found = names if held.issuperset(names) else [n for n in names if n in held]
            if found:
                held.difference_update(found)
                written = dirty.intersection(found) if dirty else ()
                store.release(found, written)
                dirty.difference_update(written)

    def _read(self, slot: int) -> Array:
        array = self._table[slot]
        if array is None:  # a variable that was freed
            with reading(self.store, self._names[slot]) as array:
                return self.backend.copied(array)
        return array

    def _load_bodies(self) -> list[list[Call]]:
        """The calls of every body's instructions."""
        loaded: list[list[Call]] = [[] for _ in self.plan.bodies]
        for placed in self._parts.instructions:
            loaded[placed.body].append(self._load(placed))
        return loaded

    def _load(self, placed: PlacedInstruction) -> Call:
        inputs, outputs = (
            [self._types[i] for i in part] for part in (placed.inputs, placed.outputs)
        )
        return self.backend.load(placed.at_sizes(self.sizes, self.backend.price), inputs, outputs)

    def _find_places(self) -> tuple[dict[int, list[tuple[int, _Places]]], list[_View]]:
        """Where the instructions of every run find their arrays, and the views that stand.

        Returns:
            By the identity of the step, (number of the instruction in its body, its places) of
            those that run at every step; and the others, in the schedule's order.
        """
        program, found, standing = self.plan, {}, []
        for step in program.steps:
            if not isinstance(step, Run):
                continue
            own = found[id(step)] = list[tuple[int, _Places]]()
            for at, item in enumerate(program.bodies[step.body]):
                inputs = [step.slots[i] for i in item.inputs]
                outputs = [step.slots[i] for i in item.outputs]
                if program.is_fixed_view(step, item):
                    standing.append((step.body, at, inputs[0], outputs[0]))
                    continue
                fresh = [program.slots[slot].kind in (HEAP, VIEW) for slot in outputs]
                own.append((at, _places(inputs, outputs, fresh)))
        return found, standing

    def _find_freed(self) -> dict[int, list[int]]:
        """Slots that a step forgets, by its identity: views that stand are kept."""
        kept = {*(slot for _, _, _, slot in self._standing), *self._kept.values()}
        return {
            id(step): [slot for slot in step.slots if slot not in kept]
            for step in self.plan.steps
            if isinstance(step, Free)
        }

    def _find_steps(self) -> list[Entry]:
        """Those that do something where nobody listens."""

        def is_idle(step: Entry) -> bool:
            if isinstance(step, Free):
                return not self._freed[id(step)]
            return isinstance(step, StreamIn)

        return [step for step in self.plan.steps if not (self._kept and is_idle(step))]

    def _find_runs(self) -> dict[int, list[tuple[Any, ...]]]:
        """(call, *places) of what every run computes, by the identity of the step."""
        return {
            id(step): [(self._calls[step.body][at], *own) for at, own in self._places[id(step)]]
            for step in self.plan.steps
            if isinstance(step, Run)
        }


def _places(inputs: list[int], outputs: list[int], fresh: list[bool]) -> _Places:
    """What takes operands and results from the table, and which results are put into it."""
    made = [(at, slot) for at, (slot, new) in enumerate(zip(outputs, fresh)) if new]
    if not made:
        return _taker(inputs), _taker(outputs), made
    if all(fresh):
        nothing = (None,) * len(outputs)
        return _taker(inputs), lambda table: nothing, made
    kept = [None if new else slot for slot, new in zip(outputs, fresh)]
    return (
        _taker(inputs),
        lambda table: [None if slot is None else table[slot] for slot in kept],
        made,
    )


def _taker(slots: list[int]) -> Callable[[_Table], Any]:
    if len(slots) > 1:
        return operator.itemgetter(*slots)
    return operator.itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


def _of_all(steps: Sequence[Entry]) -> Iterator[Entry]:
    """The steps that every wafer runs."""
    skipped = 0
    for step in steps:
        if isinstance(step, OnWafer):
            skipped = step.count
        elif skipped:
            skipped -= 1
        else:
            yield step
