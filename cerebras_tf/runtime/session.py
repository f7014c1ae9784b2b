"""A wafer session: programs by the shapes that come, one memory, one store, and whoever listens.

It is given something that yields programs and is driven by whoever has features: an estimator, a
process that has only a saved program, the other end of a socket. Nothing here needs TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional, Protocol

import numpy as np

from cerebras_tf.errors import BatchCapacityError, DataError, PaddingError
from cerebras_tf.ir import Array, TensorType, substitute
from cerebras_tf.ir.program import COMMON_RANDOM_STEP, GLOBAL_STEP_UPDATE, RANDOM_STEP, Program
from cerebras_tf.kernels.half_precision import to_storage
from cerebras_tf.memoryx.store import Store
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.capacity import (
    agreed_share,
    memory_fault,
    return_freed_memory,
    room_for_activations,
)
from cerebras_tf.runtime.executor import Listener, Machine
from cerebras_tf.runtime.packing import pack_batch, real_tokens
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.runtime.sizes import solve_sizes
from cerebras_tf.swarmx.swarm import Alone, Swarm

# Compiled variants kept, those used last; requests that differ more often are compiled again.
MOST_VARIANTS = 32
# Sizes of one variant that stay loaded, those used last.
MOST_SIZES = 256
# What a checkpoint says of random ops: how often they have drawn, int64 [], where that is not the
# global step; and below it how many numbers each has made whose invocations differ in size.
RANDOM_STEP_KEY = "cerebras_tf/random_step"
RANDOM_MADE_KEY = f"{RANDOM_STEP_KEY}/"
# Of another wafer, whose program for its batch has padding anyway.
_ALWAYS_PADDED = "another wafer computes it"
Phase = Callable[[str], Any]


@dataclass(frozen=True)
class Request:
    """What one step is asked for.

    Attributes:
        types: type of every feature, by name; sizes are numbers.
        wanted: names of the values it must return.
        updates: whether it changes variables.
        padded: why padding must be computed too; "" where it may be left out.
        part: which part of a batch's step it is, as its source of programs calls them; "" for all.
    """

    types: Mapping[str, TensorType]
    wanted: frozenset[str] = frozenset()
    updates: bool = True
    padded: str = ""
    part: str = ""


class Programs(Protocol):
    """Where programs come from."""

    def compile(self, request: Request) -> Program:
        """A program that answers the request; it may serve other sizes too, and return more.

        Raises:
            CerebrasError: there is none.
        """

    def enlarge(self, program: Program, most: Mapping[str, int]) -> Program:
        """One of its programs with other bounds of its symbols.

        Raises:
            DataError: it cannot be had.
        """


class SavedProgram:
    """The source that has one program, loaded from a file."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def compile(self, request: Request) -> Program:
        """The program; raises DataError where the request is not for it."""
        if request.padded and self._program.packing is not None:
            raise DataError(
                "saved program: batches must be such that padding can be left out. Received: "
                f"one where {request.padded}. Compile the model with use_vsl=False."
            )
        missing = sorted(request.wanted - set(self._program.results))
        if missing:
            raise DataError(
                "saved program: values asked for must be among its results, "
                f"{', '.join(sorted(self._program.results))}. Received: {', '.join(missing)}. "
                "Compile the model with them."
            )
        if solve_sizes(self._program, request.types) is None:
            raise DataError(
                f"saved program: features must be {_shown(self._program.given)}. "
                f"Received: {_shown(request.types)}. Compile the model for these."
            )
        return self._program

    def enlarge(self, program: Program, most: Mapping[str, int]) -> Program:
        """Never: its memory is planned."""
        raise DataError(
            f"saved program: sizes must be at most "
            f"{ {s.name: s.most for s in program.symbols} }. Received: {dict(most)}. "
            "Compile the model for larger batches."
        )


@dataclass(eq=False)
class _Variant:
    """A program, what it is for, and the machines that run it, by sizes.

    Attributes:
        most: bound of every symbol of the program, by name.
        machines: in the order of their last uses.
        last_use: requests served before it was used last.
    """

    program: Program
    updates: bool
    part: str
    most: dict[str, int]
    machines: dict[tuple[tuple[str, int], ...], Machine] = field(default_factory=dict)
    has_run: bool = False
    last_use: int = 0

    def sizes_for(self, request: Request) -> Optional[dict[str, int]]:
        """Size of every symbol, beyond its bound perhaps; None where it cannot serve."""
        if (self.updates, self.part) != (request.updates, request.part):
            return None
        if not request.wanted <= set(self.program.results):
            return None
        if request.padded and self.program.packing is not None:
            return None
        return solve_sizes(self.program, request.types)


class Session:
    """Runs steps of one model.

    Attributes:
        store: the variables.
        global_step: steps that count, as the model says; set it before the first step.
        draws: how often every random op has drawn; set it to go on where a run stopped.
        made: how many numbers random ops have made whose invocations differ in size, by the feature
            that gives their seeds; set it likewise.
        plan: the program that ran last, with symbols for its sizes; None before.
    """

    def __init__(
        self,
        programs: Programs,
        store: Store,
        backend: Backend,
        listeners: Sequence[Listener] = (),
        phase: Phase = contextlib.nullcontext,
        trains: bool = True,
        swarm: Optional[Swarm] = None,
        neighbours: Optional[Swarm] = None,
    ) -> None:
        """Prepares a session.

        Args:
            programs: where programs come from.
            store: the variables; they need values before the first step.
            backend: kernels and memory.
            listeners: told of every schedule step.
            phase: context manager that announces a named phase.
            trains: whether random ops draw anew with every update; else with every step.
            swarm: the wafers that make every step together, each with a batch of its own; None for
                this one alone.
            neighbours: the wafers that begin a session together, each within its share of their
                machine's memory; None for those of `swarm`.
        """
        self.store = store
        self.global_step = 0
        self.draws = 0
        self.made: dict[str, int] = {}
        self.plan: Optional[Program] = None
        self._sizes: dict[str, int] = {}  # that it had
        self._programs = programs
        self._backend = backend
        self._listeners = list(listeners)
        self._phase = phase
        self._trains = trains
        self._swarm = swarm or Alone()
        self._share = agreed_share(neighbours or self._swarm)
        self._variants: list[_Variant] = []
        self._uses = 0
        self._arena: Optional[Array] = None
        self._peak_bytes = 0

    def listen(self, listener: Listener) -> None:
        """Tells one more of every schedule step, of machines that are made from now on."""
        self._listeners.append(listener)

    @property
    def program(self) -> Optional[Program]:
        """The program that ran last, with the numbers that its sizes had; None before."""
        if self.plan is None or not self._sizes:
            return self.plan
        return self.plan.at(self._sizes, self._backend.price)

    @property
    def peak_bytes(self) -> int:
        """The most memory that was taken at once: variables, activations and scratch, measured."""
        return self._peak_bytes

    def run(
        self,
        features: Mapping[str, Array],
        wanted: frozenset[str] = frozenset(),
        updates: bool = True,
        part: str = "",
    ) -> dict[str, Array]:
        """Runs a step.

        Args:
            features: array of every feature, by name.
            wanted: names of the values it must return.
            updates: whether it changes variables and counts as a step.
            part: see Request.

        Returns:
            Wanted values by name, and others that cost nothing; of bfloat16 the bits.

        Raises:
            CerebrasError: the features, the memory or the variables do not allow it.
        """
        arrays = {name: _contiguous(array) for name, array in features.items()}
        types = {name: TensorType(_name(a.dtype), a.shape) for name, a in arrays.items()}
        variant, machine, derived = self._find(Request(types, wanted, updates, part=part), arrays)
        slots, program = machine.plan.slots, machine.plan
        given = {
            program.global_step: np.array(self.global_step, np.int64),
            # As if one wafer took the batches of all in turn.
            RANDOM_STEP: np.array(self.draws * self._swarm.size + self._swarm.rank, np.int64),
            COMMON_RANDOM_STEP: np.array(self.draws, np.int64),
            **self._seeds(program),
            **arrays,
            **derived,
        }
        needed = {
            name: to_storage(given[name], slots[slot].type.dtype)
            for name, slot in program.features.items()
        }
        self._follow(machine)
        if variant.has_run:
            results = machine.run(needed)
        else:  # kernels are compiled at their first call, or read from the cache on disk
            with self._phase("first step, compiling kernels not in the cache"):
                results = machine.run(needed)
            variant.has_run = True
            return_freed_memory()  # what compiling took
        self.plan, self._sizes = program, machine.sizes
        if updates or not self._trains:
            self.draws += 1
            for name, draw in program.draws.items():
                self.made[name] = self.made.get(name, 0) + substitute(draw.size, machine.sizes)
        self.global_step = int(results.pop(GLOBAL_STEP_UPDATE, self.global_step))
        self._measure(machine)
        return results

    def _follow(self, machine: Machine) -> None:
        """Tells the store what the machine's steps ask it for, and this wafer's own store, too."""
        self.store.follow(machine.acquisitions)
        if isinstance(self.store, SharedStore):
            self.store.here.follow(machine.acquisitions_here)

    def _seeds(self, program: Program) -> dict[str, Array]:
        """Seeds of random ops whose invocations differ in size, and how many numbers they made."""
        return {
            name: np.array(
                [draw.seed, draw.seed2 + self._swarm.rank, self.made.get(name, 0)], np.int64
            )
            for name, draw in program.draws.items()
        }

    def drawn(self) -> dict[str, int]:
        """What a checkpoint must say of random ops, beside the global step.

        The global step does not tell how often they have drawn where a step of the model takes
        several runs, as in gradient accumulation; nor how much, where batches differ in size.
        """
        found = {RANDOM_MADE_KEY + name: number for name, number in self.made.items()}
        draws = self.draws * self._swarm.size
        if draws != self.global_step:
            found[RANDOM_STEP_KEY] = draws
        return found

    def draw_on(self, found: Mapping[str, int]) -> None:
        """Takes what `drawn` gave for a checkpoint."""
        if RANDOM_STEP_KEY in found:
            self.draws = found[RANDOM_STEP_KEY] // self._swarm.size
        self.made = {
            name[len(RANDOM_MADE_KEY) :]: number
            for name, number in found.items()
            if name.startswith(RANDOM_MADE_KEY)
        }

    @property
    def held_bytes(self) -> int:
        """Bytes of variables and activations that are allocated now."""
        return self.store.resident_bytes + (0 if self._arena is None else self._arena.nbytes)

    def prepare(self, request: Request) -> Machine:
        """The machine that runs such requests, made now where there is none."""
        variant, sizes = self._variant(request)
        return self._sized(variant, {**variant.most, **sizes})  # of tokens all that may be

    def _find(
        self, request: Request, arrays: Mapping[str, Array]
    ) -> tuple[_Variant, Machine, dict[str, Array]]:
        """What serves a request with these features, and the features that follow from them."""
        variant, sizes = self._variant(request)
        packing = variant.program.packing
        derived: dict[str, Array] = {}
        padded = _ALWAYS_PADDED
        if packing is not None:
            self._raise_bounds(variant, sizes)
            packing = variant.program.packing or packing
            try:
                derived, padded = pack_batch(packing, arrays, sizes), ""
            except PaddingError as error:
                padded = str(error)
        padded = self._agreed(padded)
        if packing is not None and padded:
            (variant, sizes), derived = self._variant(replace(request, padded=padded)), {}
        elif packing is not None:
            sizes = {**sizes, **real_tokens(packing, derived)}
        return variant, self._sized(variant, sizes), derived

    def _agreed(self, padded: str) -> str:
        """Why padding is computed by all wafers, which run the same: because one of them must."""
        told = np.array(0 if not padded else 1 if padded == _ALWAYS_PADDED else 2, np.int64)
        heard = self._swarm.gather(told)
        if (heard == heard[0]).all() and heard[0] != 2:
            return padded
        reasons: list[str] = self._swarm.objects(padded)
        return reasons[int(heard.argmax())]

    def _variant(self, request: Request) -> tuple[_Variant, dict[str, int]]:
        """The program that serves a request, compiled once, and sizes of its symbols."""
        self._uses += 1
        for variant in self._variants:
            sizes = variant.sizes_for(request)
            if sizes is not None:
                variant.last_use = self._uses
                return variant, sizes
        program = self._programs.compile(request)
        self._check(program)
        variant = _Variant(
            program, request.updates, request.part, _bounds(program), last_use=self._uses
        )
        sizes = variant.sizes_for(request)
        assert sizes is not None, "a source of programs must answer the request"
        self._variants.append(variant)
        if len(self._variants) > MOST_VARIANTS:
            self._variants.remove(min(self._variants, key=lambda variant: variant.last_use))
        return variant, sizes

    def _sized(self, variant: _Variant, sizes: dict[str, int]) -> Machine:
        """The variant's machine for these sizes; its bounds are raised where need be."""
        key = tuple(sorted(sizes.items()))
        machine = variant.machines.pop(key, None)
        if machine is not None:
            variant.machines[key] = machine
            return machine
        self._raise_bounds(variant, sizes)
        arena = self._memory(variant.program.arena_bytes)
        like = next(iter(variant.machines.values()), None)
        if like is not None:
            machine = like.resized(sizes)
        else:
            backend, listeners = self._backend, self._listeners
            machine = Machine(
                variant.program, self.store, backend, listeners, arena, self._swarm, sizes
            )
            self._follow(machine)
            self.store.require_room(machine.held_together)
        variant.machines[key] = machine
        if len(variant.machines) > MOST_SIZES:
            del variant.machines[next(iter(variant.machines))]
        return machine

    def _raise_bounds(self, variant: _Variant, sizes: Mapping[str, int]) -> None:
        """Makes room for a batch that is larger than those before it."""
        most = variant.most
        if any(size > most[name] for name, size in sizes.items()):
            raised = {name: max(bound, sizes.get(name, 0)) for name, bound in most.items()}
            variant.program = self._programs.enlarge(variant.program, raised)
            variant.most = _bounds(variant.program)
            variant.machines.clear()
            self._check(variant.program)

    @property
    def room_for_activations(self) -> int:
        """Bytes that activations and scratch memory may take; on several wafers the same."""
        store = self.store
        state = store.total_resident_bytes
        if isinstance(store, SharedStore):
            state = store.even_resident_bytes
        return room_for_activations(state, self.held_bytes, self._share)

    def memory_fault(self, program: Program) -> Optional[BatchCapacityError]:
        """What is wrong where a program does not fit into memory; else None.

        Of variables that counts which is kept here: they are dealt out first.
        """
        if isinstance(self.store, SharedStore) and program.wafers > 1 and program.homes:
            self.store.deal_out(program.homes)
        return memory_fault(program, self.store.total_resident_bytes, self.held_bytes, self._share)

    def _check(self, program: Program) -> None:
        if program.wafers != self._swarm.size:
            raise DataError(
                f"program: must be run by as many wafers as it was compiled for, {program.wafers}. "
                f"Received: {self._swarm.size}. Compile the model with that num_csx."
            )
        fault = self.memory_fault(program)
        if fault is not None:
            raise fault

    def _memory(self, size: int) -> Array:
        """Activation memory that all machines share; grown, and given to all anew, when needed."""
        if self._arena is None or self._arena.nbytes < size:
            machines = [m for v in self._variants for m in v.machines.values()]
            for machine in machines:
                machine.unbind()
            self._arena = None  # given back before more is taken
            self._arena = self._backend.allocate(size)
            for machine in machines:
                machine.bind(self._arena)
        return self._arena

    def _measure(self, machine: Machine) -> None:
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + machine.scratch_bytes)


def _bounds(program: Program) -> dict[str, int]:
    return {symbol.name: symbol.most for symbol in program.symbols}


def _contiguous(array: Any) -> Array:
    """An array in C order; a scalar of NumPy, which owns no memory that lasts, is copied."""
    return np.require(array if isinstance(array, np.ndarray) else np.array(array), None, "C")


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    """A dtype's name, which NumPy makes anew each time."""
    return str(dtype.name)


def _shown(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{name} {type}" for name, type in types.items())
