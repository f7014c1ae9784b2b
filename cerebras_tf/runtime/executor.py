"""The executor: the one loop that runs a program's schedule on arrays.

Listeners, such as traces and cost models, are called around every entry. Loading a program resolves
the kernels, slots and variable names of its entries once.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Protocol

import numpy as np

from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.ir.program import ARENA, HEAP, VIEW, Program
from cerebras_tf.ir.schedule import Entry, Free, OnWafer, Run, Share, StreamIn, StreamOut
from cerebras_tf.memoryx.store import Store, reading
from cerebras_tf.runtime.backend import Backend, Call
from cerebras_tf.runtime.collective_plan import local_acquisitions
from cerebras_tf.runtime.sizes import PlacedInstruction, SizeDependence
from cerebras_tf.swarmx.swarm import Alone, Swarm

_Table = list[Optional[Array]]
_BYTES_OF = operator.attrgetter("nbytes")
_View = tuple[int, int, int, int]  # body and number of the instruction; slots it reads and writes
# Of an instruction: getters of its operands and outputs, and which results are new arrays.
_Places = tuple[Callable[[_Table], Any], Callable[[_Table], Any], list[tuple[int, int]]]


class Listener(Protocol):
    """Is called around every entry of a schedule."""

    def begin(self, program: Program) -> None:
        """Entries of a program are about to run: all of a step, or those of a layer."""

    def before(self, entry: Entry) -> None:
        """The entry is about to run."""

    def after(self, entry: Entry) -> None:
        """The entry has run."""


class LoadedEntry:
    """A loaded entry of a schedule.

    Attributes:
        entry: the entry as it is in the program.
    """

    __slots__ = ("entry",)
    entry: Entry

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    def run(self, executor: Executor) -> None:
        """Runs it; by default nothing."""

    @property
    def is_idle(self) -> bool:
        """Whether it does nothing."""
        return type(self) is LoadedEntry


class _Run(LoadedEntry):
    """Runs the instructions of a body on its slots."""

    __slots__ = ("calls", "places")
    places: list[tuple[int, _Places]]  # number of the instruction in its body, and its places
    calls: list[tuple[Any, ...]]  # (call, *places)

    def load(self, bodies: list[list[Call]]) -> _Run:
        """The entry with calls of a program that is loaded for some sizes."""
        assert isinstance(self.entry, Run)
        made = _Run(self.entry)
        made.places, calls = self.places, bodies[self.entry.body]
        made.calls = [(calls[at], *places) for at, places in self.places]
        return made

    def run(self, executor: Executor) -> None:
        table = executor.table
        for call, take, place, made in self.calls:
            results = call(take(table), place(table))
            for at, slot in made:
                table[slot] = results[at]


class _StreamIn(LoadedEntry):
    """Acquires variables."""

    __slots__ = ("is_local", "names", "slots")
    names: list[str]
    slots: Sequence[int]
    is_local: bool  # only this wafer acquires them

    def run(self, executor: Executor) -> None:
        arrays = executor.acquire(self.is_local, self.names, self.slots)
        executor.bytes_in += sum(map(_BYTES_OF, arrays))


class _StreamOut(LoadedEntry):
    """Marks variables that were written in place; copies other new values to the store."""

    __slots__ = ("in_place", "is_local", "others", "size")
    in_place: list[str]
    size: int  # bytes of these
    others: list[tuple[str, int]]  # name and slot
    is_local: bool

    def run(self, executor: Executor) -> None:
        executor.dirty.update(self.in_place)
        executor.bytes_out += self.size
        for name, slot in self.others:
            executor.write(self.is_local, name, slot)


class _Free(LoadedEntry):
    """Empties slots and releases the variables among them."""

    __slots__ = ("names", "slots")
    names: list[str]
    slots: list[int]

    def run(self, executor: Executor) -> None:
        table = executor.table
        for slot in self.slots:
            table[slot] = None
        if self.names:
            executor.release(self.names)

    @property
    def is_idle(self) -> bool:
        return not (self.slots or self.names)


class _Share(LoadedEntry):
    """Sends what one wafer has computed to all others, or receives it."""

    __slots__ = ()
    entry: Share

    def run(self, executor: Executor) -> None:
        executor.share(self.entry)


class Loader:
    """Loads the entries of a schedule: one method for each kind, which adds what runs.

    Attributes:
        program: the program to load.
        entries: the loaded entries.
        names: variables and staged values by slot.
    """

    def __init__(self, program: Program, rank: int, kept: Mapping[str, int]) -> None:
        """Prepares loading.

        Args:
            program: the program to load.
            rank: of this wafer.
            kept: slots of variables that stay acquired for a whole step, by name.
        """
        self.program = program
        self.entries: list[LoadedEntry] = []
        self.names = _names_of(program)
        self.fixed_views: list[_View] = []  # views of what stays in memory, made when it is bound
        self._rank, self._kept = rank, kept
        self._alone = self._skipped = (
            0  # entries from here on that only this wafer, or another, runs
        )

    def load(self) -> list[LoadedEntry]:
        """Loads all entries of the schedule."""
        for entry in self.program.schedule:
            if self._skipped:
                self._skipped -= 1
                continue
            entry.apply(self)
            self._alone = max(0, self._alone - 1)
        kept = {*(slot for _, _, _, slot in self.fixed_views), *self._kept.values()}
        for loaded in self.entries:
            if isinstance(loaded, _Free):
                loaded.slots = [slot for slot in loaded.slots if slot not in kept]
        return self.entries

    def compute(self, entry: Run) -> None:
        """Finds where the instructions of a body find their arrays."""
        loaded, program = _Run(entry), self.program
        loaded.places, loaded.calls = [], []
        for at, item in enumerate(program.bodies[entry.body]):
            inputs = [entry.slots[i] for i in item.inputs]
            outputs = [entry.slots[i] for i in item.outputs]
            if program.is_fixed_view(entry, item):
                self.fixed_views.append((entry.body, at, inputs[0], outputs[0]))
                continue
            fresh = [program.slots[slot].kind in (HEAP, VIEW) for slot in outputs]
            loaded.places.append((at, _places(inputs, outputs, fresh)))
        self.entries.append(loaded)

    def stream_in(self, entry: StreamIn) -> None:
        """Acquires variables, where they are not kept."""
        if self._kept:
            self.entries.append(LoadedEntry(entry))
            return
        loaded = _StreamIn(entry)
        loaded.names, loaded.slots = [self.names[slot] for slot in entry.slots], entry.slots
        loaded.is_local = bool(self._alone)
        self.entries.append(loaded)

    def stream_out(self, entry: StreamOut) -> None:
        """Separates variables that are written in place from those that are copied."""
        variables, slots = self.program.variables, self.program.slots
        loaded = _StreamOut(entry)
        in_place = [pair for pair in entry.stores if variables.get(pair[0]) == pair[1]]
        loaded.in_place = [name for name, _ in in_place]
        loaded.size = sum(slots[slot].type.max_bytes for _, slot in in_place)
        loaded.others = [pair for pair in entry.stores if pair not in in_place]
        loaded.is_local = bool(self._alone)
        self.entries.append(loaded)

    def free(self, entry: Free) -> None:
        """Releases variables, where they are not kept."""
        loaded = _Free(entry)
        loaded.slots = list(entry.slots)
        loaded.names = [self.names[s] for s in entry.slots if s in self.names and not self._kept]
        self.entries.append(loaded)

    def on_wafer(self, entry: OnWafer) -> None:
        """Skips entries of another wafer; this wafer's own entries use its local store."""
        self.entries.append(LoadedEntry(entry))
        if entry.wafer == self._rank:
            self._alone = entry.count + 1
        else:
            self._skipped = entry.count

    def share(self, entry: Share) -> None:
        """Sends, or receives, what one wafer has computed."""
        self.entries.append(_Share(entry))


class Executor:
    """A loaded program with its memory.

    Attributes:
        plan: the program as it was given, with symbols.
        sizes: numbers of its symbols, by name.
        store: the variables.
        backend: kernels and memory.
        arena: the activation memory.
        table: the array of every slot that has one now.
        active: the loaded entries that do something.
        dirty: variables that are acquired now and were written.
        bytes_in: bytes of variables streamed in so far.
        bytes_out: bytes of new values streamed out so far.
        scratch_bytes: the most scratch memory that kernels took at once.
        acquisitions: names of the groups of variables that all wafers stream in, in order.
        held_together: names of variables and staged values that the store must hold at once.
    """

    loader: type[Loader] = Loader

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
            store: the variables.
            backend: kernels and memory.
            listeners: called around every entry of the schedule.
            arena: at least program.arena_bytes of the backend's memory; allocated where not given.
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
        self._swarm = swarm or Alone()
        self._stores = [store] if store.local is store else [store, store.local]
        self._reset()
        self.names = _names_of(program)
        self.acquisitions = [
            [self.names[slot] for slot in entry.slots]
            for entry in _common_entries(program.schedule)
            if isinstance(entry, StreamIn)
        ]
        self.held_together = groups_held((0, self.names, entry) for entry in program.schedule)
        self._kept, self._kept_bytes = self._find_kept()
        store.reserve(
            Variable(name, program.slots[slot].type) for name, slot in program.staged.items()
        )
        self._parts = SizeDependence(program)
        self._types = self._parts.types(self.sizes)
        self._calls = self._load_bodies()
        loader = self.loader(program, self._swarm.rank, self._kept)
        self.entries, self._fixed_views = loader.load(), loader.fixed_views
        self._load_entries()
        self.table: _Table = [None] * len(program.slots)
        for index, content in program.constants.items():
            self.table[index] = backend.constant(content, program.slots[index].type.dtype)
        self.bind(backend.allocate(program.arena_bytes) if arena is None else arena)

    def _reset(self) -> None:
        """Nothing is acquired."""
        self._held: list[set[str]] = [set() for _ in self._stores]  # variables acquired now
        self._uploaded: dict[str, tuple[Array, Array]] = {}  # of them, array of the store and ours
        self.dirty: set[str] = set()

    def resized(self, sizes: Mapping[str, int]) -> Executor:
        """An executor for other sizes in the same memory; loads only what depends on sizes.

        Raises:
            GraphError: a symbol has no size, or one beyond its bound.
        """
        other = copy.copy(self)
        other.__dict__.pop("program", None)
        other.sizes = dict(sizes)
        other.bytes_in = other.bytes_out = other.scratch_bytes = 0
        other._reset()
        other._types = self._parts.types(other.sizes)
        other.table = list(self.table)
        for slot in self._parts.slots:
            other._place(slot)
        other._calls = [list(calls) for calls in self._calls]
        for placed in self._parts.sized:
            other._calls[placed.body][placed.at] = other._load(placed)
        other._load_entries()
        other._bind_views()
        return other

    def _load_entries(self) -> None:
        """Binds runs to their calls, and finds the entries that are not idle."""
        self.entries = [
            loaded.load(self._calls) if isinstance(loaded, _Run) else loaded
            for loaded in self.entries
        ]
        self.active = [loaded for loaded in self.entries if not loaded.is_idle]

    @functools.cached_property
    def program(self) -> Program:
        """What runs: the program with numbers for its sizes."""
        if not self.sizes:
            return self.plan
        return self.plan.at(self.sizes, self.backend.price)

    @functools.cached_property
    def local_acquisitions(self) -> list[list[str]]:
        """Names that a step acquires from this wafer's own store, call by call."""
        return local_acquisitions(self.plan, self._swarm.rank)

    def _find_kept(self) -> tuple[dict[str, int], int]:
        """Slots of the variables, by name, that stay acquired for a whole step; their bytes.

        These are all variables if the store gives its own memory, and none otherwise.
        """
        kept, written, size = dict[str, int](), set[str](), 0
        if not self.store.gives_views:
            return kept, size
        for entry in self.plan.schedule:
            if isinstance(entry, (OnWafer, Share)):
                return {}, 0
            if isinstance(entry, StreamIn):
                kept.update((self.names[slot], slot) for slot in entry.slots)
                size += sum(self.plan.slots[slot].type.max_bytes for slot in entry.slots)
            elif isinstance(entry, StreamOut):
                written.update(name for name, _ in entry.stores if name not in kept)
        # A variable that is written before it is read has no value at the start of the step.
        return ({}, 0) if written.intersection(kept) else (kept, size)

    def bind(self, arena: Array) -> None:
        """Places the activations in this memory; earlier values are lost."""
        self.arena: Optional[Array] = arena
        for index in range(len(self.table)):
            self._place(index)
        self._bind_views()

    def _bind_views(self) -> None:
        """Makes the views that stay valid until the activations move."""
        table = self.table
        for body, at, source, slot in self._fixed_views:
            seen = table[source]
            assert seen is not None  # constant, or in this memory
            (table[slot],) = self._calls[body][at]((seen,), (None,))

    def _place(self, index: int) -> None:
        slot = self.plan.slots[index]
        if slot.kind == ARENA:
            assert self.arena is not None
            self.table[index] = self.backend.place(self.arena, self._types[index], slot.offset)

    def unbind(self) -> None:
        """Releases the activations' memory until it is bound again."""
        self.arena = None
        for index, slot in enumerate(self.plan.slots):
            if slot.kind == ARENA:
                self.table[index] = None
        for _, _, _, index in self._fixed_views:
            self.table[index] = None

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
            self.start(features)
            self.execute(self.entries if self._listeners else self.active)
            return self.finish()
        finally:
            self.release_all()

    def start(self, features: Mapping[str, Array]) -> None:
        """Begins a step: uploads its features."""
        slots = self.plan.features
        for slot, array in zip(slots.values(), self.backend.upload([features[n] for n in slots])):
            self.table[slot] = array
        if self._kept:
            self.acquire(False, list(self._kept), self._kept.values())
            self.bytes_in += self._kept_bytes

    def execute(self, entries: Sequence[LoadedEntry]) -> None:
        """Runs entries of the schedule; values stay where they were computed."""
        for listener in self._listeners:
            listener.begin(self.program)
        with np.errstate(all="ignore"):
            if not self._listeners:
                for loaded in entries:
                    loaded.run(self)
                return
            for loaded in entries:
                for listener in self._listeners:
                    listener.before(loaded.entry)
                loaded.run(self)
                for listener in self._listeners:
                    listener.after(loaded.entry)

    def finish(self) -> dict[str, Array]:
        """The wanted values, by name, after all entries have run; copies."""
        self.scratch_bytes = max(self.scratch_bytes, self.backend.peak_bytes())
        download = self.backend.download
        return {name: download(self._read(slot)) for name, slot in self.plan.results.items()}

    def release_all(self) -> None:
        """Releases the variables that are still acquired."""
        self.release(list(self._kept) if self._kept else sorted(set().union(*self._held)))

    def value(self, name: str) -> Array:
        """A wanted value of the last step, not copied; the next step overwrites it."""
        return self._read(self.plan.results[name])

    # What entries do.

    def acquire(self, is_local: bool, names: Sequence[str], slots: Iterable[int]) -> list[Array]:
        """Acquires variables for slots from this wafer's own store or the shared one."""
        at = -1 if is_local else 0
        given = self._stores[at].acquire(names)
        arrays, table = self.backend.upload(given), self.table
        if arrays is not given:
            self._uploaded.update(zip(names, zip(given, arrays)))
        self._held[at].update(names)
        for slot, array in zip(slots, arrays):
            table[slot] = array
        return given

    def write(self, is_local: bool, name: str, slot: int) -> None:
        """Copies a new value of a variable to the store."""
        made = self._read(slot)
        self.bytes_out += made.nbytes
        if any(name in held for held in self._held):
            target = self.table[self.plan.variables[name]]
            assert target is not None
            self.backend.copy(target, made)
            self.dirty.add(name)
        else:
            store = self._stores[-1 if is_local else 0]
            (target,) = store.acquire([name], fresh=True)
            self.backend.download_into(target, made)
            store.release([name], dirty=[name])

    def release(self, names: Sequence[str]) -> None:
        """Releases variables that were acquired; those that were written are dirty."""
        dirty = self.dirty
        for store, held in zip(self._stores, self._held):
            found = names if held.issuperset(names) else [n for n in names if n in held]
            if found:
                held.difference_update(found)
                written = dirty.intersection(found) if dirty else ()
                if self._uploaded:
                    self._write_back(found, written)
                store.release(found, written)
                dirty.difference_update(written)

    def _write_back(self, names: Sequence[str], written: Iterable[str]) -> None:
        """Copies what was written on the backend to the store's arrays."""
        for name in written:
            if name in self._uploaded:
                self.backend.download_into(*self._uploaded[name])
        for name in names:
            self._uploaded.pop(name, None)

    def share(self, entry: Share) -> None:
        """Sends, or receives, what one wafer has computed."""
        pendings = []
        for slot in entry.slots:
            array = self.table[slot]
            assert array is not None
            pendings.append(self._swarm.start_copy(array, entry.wafer))
        for pending in pendings:
            pending.wait()
        self.store.broadcast(entry.variables, entry.wafer)

    def _read(self, slot: int) -> Array:
        array = self.table[slot]
        if array is None:  # a variable that was freed
            with reading(self.store, self.names[slot]) as array:
                (uploaded,) = self.backend.upload([np.array(array)])
                return uploaded
        return array

    def _load_bodies(self) -> list[list[Call]]:
        """The calls of every body's instructions."""
        loaded: list[list[Call]] = [[] for _ in self.plan.bodies]
        for placed in self._parts.instructions:
            loaded[placed.body].append(self._load(placed))
        return loaded

    def _load(self, placed: PlacedInstruction) -> Call:
        def types(slots: Sequence[int]) -> list[TensorType]:
            return [self._types[slot] for slot in slots]

        item = placed.at_sizes(self.sizes, self.backend.price)
        return self.backend.load(item, types(placed.inputs), types(placed.outputs))


def groups_held(entries: Iterable[tuple[int, Mapping[int, str], Entry]]) -> list[list[str]]:
    """Names of all that a store must hold at once, at every entry that acquires variables.

    Args:
        entries: in the order in which they run, each after the number of its executor and the names
            of its slots; several executors may alternate.
    """
    found: list[list[str]] = []
    held: dict[tuple[int, int], str] = {}  # by executor and slot
    for number, names, entry in entries:
        if isinstance(entry, StreamIn):
            held.update(((number, slot), names[slot]) for slot in entry.slots)
            found.append(list(dict.fromkeys(held.values())))
        elif isinstance(entry, StreamOut):
            here = list(dict.fromkeys(held.values()))
            found.extend([*here, name] for name, _ in entry.stores if name not in here)
        elif isinstance(entry, Free):
            for slot in entry.slots:
                held.pop((number, slot), None)
    return found


def _names_of(program: Program) -> dict[int, str]:
    """Names of variables and staged values, by slot."""
    return {slot: name for name, slot in {**program.variables, **program.staged}.items()}


def _places(inputs: list[int], outputs: list[int], fresh: list[bool]) -> _Places:
    """Getters of operands and outputs, and the results to put into the table."""
    made = [(at, slot) for at, (slot, new) in enumerate(zip(outputs, fresh)) if new]
    if not made:
        return _getter(inputs), _getter(outputs), made
    if all(fresh):
        nothing = (None,) * len(outputs)
        return _getter(inputs), lambda table: nothing, made
    kept = [None if new else slot for slot, new in zip(outputs, fresh)]
    return (
        _getter(inputs),
        lambda table: [None if slot is None else table[slot] for slot in kept],
        made,
    )


def _getter(slots: list[int]) -> Callable[[_Table], Any]:
    if len(slots) > 1:
        return operator.itemgetter(*slots)
    return operator.itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


def _common_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that every wafer runs."""
    found, skipped = [], 0
    for entry in entries:
        if isinstance(entry, OnWafer):
            skipped = entry.count
        elif skipped:
            skipped -= 1
        else:
            found.append(entry)
    return found
