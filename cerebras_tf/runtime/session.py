"""A session in this process: programs by the shapes they serve, one memory, one store."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional, Protocol, Union

import numpy as np

from cerebras_tf.errors import BatchCapacityError, ConfigError, DataError, PaddingError
from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.ir.program import BEFORE, GLOBAL_STEP_UPDATE, Price, Program
from cerebras_tf.kernels.half_precision import to_storage
from cerebras_tf.memoryx.store import Store, reading, write
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.capacity import activation_limit, capacity_error, memory_share, trim_heap
from cerebras_tf.runtime.executor import Executor, Listener
from cerebras_tf.runtime.interleave import Interleaving, align, count_together, interleave
from cerebras_tf.runtime.packing import pack_batch, real_tokens
from cerebras_tf.runtime.protocol import (
    Accepted,
    Batch,
    Prepared,
    ProgramNeeded,
    Request,
    StepResult,
)
from cerebras_tf.runtime.random_streams import RandomStreams
from cerebras_tf.runtime.sizes import solve_sizes
from cerebras_tf.swarmx.swarm import Alone, Swarm

# Programs that are kept, the most recently used ones; others are compiled again.
MAX_VARIANTS = 32
# Sizes of one program that stay loaded, the most recently used ones.
MAX_SIZES = 256
# The reason given by a wafer whose own program computes padding in any case.
_OTHER_WAFER = "another wafer computes it"
GLOBAL_STEP = "global_step"  # its name in checkpoints
Phase = Callable[[str], Any]


class CheckpointFormat(Protocol):
    """How a session's checkpoints are written."""

    def save(self, prefix: str, store: Store, numbers: Mapping[str, int]) -> None:
        """Writes all variables of a store, and numbers by name."""

    def restore(self, prefix: str, store: Store) -> dict[str, int]:
        """Reads all variables of a store; returns the numbers.

        Raises:
            CheckpointError: a variable is missing there, or has another shape or dtype.
        """


@dataclass(eq=False)
class _Variant:
    """A program, the requests that it serves, and its executors.

    Attributes:
        bounds: bound of every symbol of the program, by name.
        executors: by region of the activation memory and sizes of the symbols, in order of last
            use.
        last_use: number of the request that used it last.
    """

    number: int
    program: Program
    updates: bool
    kind: str
    bounds: dict[str, int]
    executors: dict[tuple[int, tuple[tuple[str, int], ...]], Executor] = field(default_factory=dict)
    has_run: bool = False
    last_use: int = 0

    def sizes_for(self, request: Request) -> Optional[dict[str, int]]:
        """Size of every symbol, which may exceed its bound; None if it cannot serve the request."""
        if (self.updates, self.kind) != (request.updates, request.kind):
            return None
        if not request.wanted <= set(self.program.results):
            return None
        if request.padding_reason and self.program.packing is not None:
            return None
        return solve_sizes(self.program, request.types)

    def needed(self, sizes: Mapping[str, int]) -> Optional[dict[str, int]]:
        """The bounds that a batch of these sizes needs; None if its own suffice."""
        if all(size <= self.bounds[name] for name, size in sizes.items()):
            return None
        return {name: max(bound, sizes.get(name, 0)) for name, bound in self.bounds.items()}


@dataclass(eq=False)
class _Work:
    """A batch with the program that serves it and the sizes of its symbols."""

    variant: _Variant
    sizes: dict[str, int]
    features: dict[str, Array]


class SessionOfStore(Protocol):
    """What sessions here and at an address do alike with their store."""

    _store: Store
    _checkpoints: Optional[CheckpointFormat]

    @property
    def global_step(self) -> int: ...

    def random_state(self) -> dict[str, int]: ...

    def restore_numbers(self, numbers: Mapping[str, int]) -> None:
        """Restores what a checkpoint holds besides variables."""

    @property
    def specs(self) -> Mapping[str, Variable]:
        return self._store.specs

    def get(self, name: str) -> Array:
        with reading(self._store, name) as array:
            return np.array(array)

    def put(self, name: str, content: Array) -> None:
        write(self._store, name, content)

    def save(self, prefix: str) -> None:
        numbers = {GLOBAL_STEP: self.global_step, **self.random_state()}
        self._format().save(prefix, self._store, numbers)

    def restore(self, prefix: str) -> None:
        self.restore_numbers(self._format().restore(prefix, self._store))

    def _format(self) -> CheckpointFormat:
        if self._checkpoints is None:
            raise ConfigError(
                "session: must have a checkpoint format to save and restore. Received: none. Pass "
                "it as `checkpoints`."
            )
        return self._checkpoints


class Session(SessionOfStore):
    """Runs steps of one model in this process; implements SessionProtocol."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        listeners: Sequence[Listener] = (),
        phase: Phase = contextlib.nullcontext,
        trains: bool = True,
        swarm: Optional[Swarm] = None,
        loading_swarm: Optional[Swarm] = None,
        checkpoints: Optional[CheckpointFormat] = None,
        memory_bytes: Optional[int] = None,
    ) -> None:
        """Prepares a session.

        Args:
            store: the variables; they need values before the first step.
            backend: kernels and memory.
            listeners: called around every entry of the schedule.
            phase: context manager that reports a named phase.
            trains: whether random ops draw new numbers with every update; else with every step.
            swarm: the wafers that run every step together, each with a batch of its own; None for
                this one alone.
            loading_swarm: the wafers that load a model at the same time and share memory; None for
                those of `swarm`.
            checkpoints: what `save` and `restore` use.
            memory_bytes: the most memory for variables, activations and scratch memory; None for
                what is free, shared with the loading swarm.
        """
        self._store = store
        self._backend = backend
        self._listeners = list(listeners)
        self._phase = phase
        self._swarm = swarm or Alone()
        self._share, self._of_share = memory_bytes, " of what the wafer's server allows"
        if memory_bytes is None:
            self._share = memory_share(loading_swarm or self._swarm)
            self._of_share = " for each of its wafers (num_csx)"
        self._checkpoints = checkpoints
        self._random = RandomStreams(self._swarm.rank, self._swarm.size, trains)
        self._global_step = 0
        self._variants: dict[int, _Variant] = {}
        self._numbers = itertools.count()
        self._uses = 0
        self._arena: Optional[Array] = None
        self._is_arena_used = False  # memory takes no space before it is written
        self._regions: dict[int, Array] = {}  # views of it, by offset
        self._interleavings: dict[tuple[Any, ...], Interleaving] = {}
        self._peak_bytes = 0

    def listen(self, listener: Listener) -> None:
        """Adds a listener to programs that are loaded from now on."""
        self._listeners.append(listener)

    @property
    def price(self) -> Price:
        return self._backend.price

    @property
    def global_step(self) -> int:
        return self._global_step

    @property
    def version(self) -> int:
        return self._store.version

    @property
    def peak_bytes(self) -> int:
        return self._peak_bytes

    @property
    def held_bytes(self) -> int:
        used = self._arena.nbytes if self._arena is not None and self._is_arena_used else 0
        return self._store.resident_bytes + used

    def restore_numbers(self, numbers: Mapping[str, int]) -> None:
        self._global_step = numbers.get(GLOBAL_STEP, 0)
        self.restore_random_state(numbers)

    def random_state(self) -> dict[str, int]:
        return self._random.state(self._global_step)

    def restore_random_state(self, state: Mapping[str, int]) -> None:
        self._random.restore(state)

    # Steps.

    def step(
        self, batches: Sequence[Batch], activation_bytes: Optional[int] = None
    ) -> Union[list[StepResult], ProgramNeeded]:
        found: list[_Work] = []
        for batch in batches:
            if batch.global_step is not None:
                self._global_step = batch.global_step
            arrays = {name: _contiguous(array) for name, array in batch.features.items()}
            types = {name: TensorType(_name(a.dtype), a.shape) for name, a in arrays.items()}
            reason = batch.agreed_padding or ""
            request = Request(types, batch.wanted, batch.updates, reason, batch.kind)
            work = self._find(request, arrays, batch.agreed_padding)
            if isinstance(work, ProgramNeeded):
                return work
            found.append(work)
        if len(found) == 1:
            executors = [self._executor_for(found[0].variant, found[0].sizes)]
            run: Callable[..., list[dict[str, Array]]] = _run_one(executors[0])
            self._set_access_orders(executors[0])
        else:
            schedule = self._interleaved(found, activation_bytes)
            executors, run = list(schedule.executors), schedule.run
            self._store.set_access_order(schedule.acquisitions)
        features = [
            self._features(work, executor, batch.updates)
            for work, executor, batch in zip(found, executors, batches)
        ]
        new = [work.variant for work in found if not work.variant.has_run]
        if not new:
            results = run(features)
        else:  # kernels are compiled at their first call, or read from the cache on disk
            with self._phase("first step, with the compilation of kernels"):
                results = run(features)
            for variant in new:
                variant.has_run = True
            trim_heap()  # what compiling took
        self._is_arena_used = True
        scratch_bytes = max(executor.scratch_bytes for executor in executors)
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + scratch_bytes)
        answers = []
        for work, executor, values in zip(found, executors, results):
            self._global_step = int(values.pop(GLOBAL_STEP_UPDATE, self._global_step))
            answers.append(
                StepResult(work.variant.number, executor.sizes, values, self._global_step)
            )
        return answers

    def _features(self, work: _Work, executor: Executor, updates: bool) -> dict[str, Array]:
        """All features of a program; counts what its random ops draw."""
        slots, program = executor.plan.slots, executor.plan
        given = {
            **work.features,
            program.global_step: np.array(self._global_step, np.int64),
            **self._random.features(program, self._global_step),
        }
        if work.variant.kind != BEFORE:
            self._random.advance(program, executor.sizes, updates)
        return {
            name: to_storage(given[name], slots[slot].type.dtype)
            for name, slot in program.features.items()
        }

    def _interleaved(self, found: Sequence[_Work], max_bytes: Optional[int]) -> Interleaving:
        """The schedule of the micro-batches."""
        key = tuple((id(work.variant), tuple(sorted(work.sizes.items()))) for work in found)
        kept = self._interleavings.get(key)
        if kept is None:
            limit = self.activation_limit
            limit = limit if max_bytes is None else min(limit, max_bytes)
            programs = [work.variant.program for work in found]
            together = count_together(programs, self._store, limit)
        else:
            together = kept.together
        executors = self._regions_for(found, together)
        if kept is not None and all(map(operator.is_, kept.executors, executors)):
            return kept
        made = interleave(executors, together, self._store)
        if made is None:
            made = interleave(self._regions_for(found, 1), 1, self._store)
            assert made is not None
        if len(self._interleavings) >= MAX_VARIANTS:
            self._interleavings.clear()
        self._interleavings[key] = made
        return made

    def _regions_for(self, found: Sequence[_Work], together: int) -> list[Executor]:
        """Executors of micro-batches; those that run together have memory of their own."""
        size = max(work.variant.program.arena_bytes for work in found)
        stride = align(size) if together > 1 else 0
        self._region(max(size, stride * together), 0)  # grows before executors are bound to it
        return [
            self._executor_for(work.variant, work.sizes, number % together, stride, together)
            for number, work in enumerate(found)
        ]

    def _set_access_orders(self, executor: Executor) -> None:
        """Sets the access order of the store, and of this wafer's own store."""
        self._store.set_access_order(executor.acquisitions)
        if self._store.is_shared:
            self._store.local.set_access_order(executor.local_acquisitions)

    def _find(
        self, request: Request, arrays: Mapping[str, Array], agreed: Optional[str]
    ) -> Union[ProgramNeeded, _Work]:
        """What serves a request with these features."""
        found = self._variant(request)
        if found is None:
            return ProgramNeeded(request, agreed_padding=agreed)
        variant, sizes = found
        packing = variant.program.packing
        derived: dict[str, Array] = {}
        if packing is not None:
            larger = variant.needed(sizes)
            if larger is not None:
                return ProgramNeeded(request, variant.number, larger, agreed)
        if agreed is None or packing is not None:
            padded = _OTHER_WAFER
            if packing is not None:
                try:
                    derived, padded = pack_batch(packing, arrays, sizes), ""
                except PaddingError as error:
                    padded = str(error)
            agreed = self._agree_on_padding(padded) if agreed is None else agreed
            if packing is not None and agreed:
                return self._find(replace(request, padding_reason=agreed), arrays, agreed)
        if packing is not None:
            sizes = {**sizes, **real_tokens(packing, derived)}
        larger = variant.needed(sizes)
        if larger is not None:
            return ProgramNeeded(request, variant.number, larger, agreed)
        return _Work(variant, sizes, {**arrays, **derived})

    def _agree_on_padding(self, padded: str) -> str:
        """Why no wafer removes padding: because one of them cannot."""
        if self._swarm.size == 1:
            return padded
        code = np.array(0 if not padded else 1 if padded == _OTHER_WAFER else 2, np.int64)
        codes = self._swarm.gather(code)
        if (codes == codes[0]).all() and codes[0] != 2:
            return padded
        reasons: list[str] = self._swarm.objects(padded)
        return reasons[int(np.argmax(codes))]

    def _variant(self, request: Request) -> Optional[tuple[_Variant, dict[str, int]]]:
        """The program that serves a request, and sizes of its symbols."""
        self._uses += 1
        for variant in self._variants.values():
            sizes = variant.sizes_for(request)
            if sizes is not None:
                variant.last_use = self._uses
                return variant, sizes
        return None

    def prepare(self, request: Request) -> Union[Prepared, ProgramNeeded]:
        found = self._variant(request)
        if found is None:
            return ProgramNeeded(request)
        variant, sizes = found
        larger = variant.needed(sizes)
        if larger is not None:
            return ProgramNeeded(request, variant.number, larger)
        executor = self._executor_for(variant, {**variant.bounds, **sizes})
        return Prepared(variant.number, executor.sizes)

    def _executor_for(
        self,
        variant: _Variant,
        sizes: dict[str, int],
        position: int = 0,
        stride: int = 0,
        count: int = 1,
    ) -> Executor:
        """The variant's program, loaded for these sizes.

        Args:
            variant: the program.
            sizes: of its symbols.
            position: number of its region of the activation memory.
            stride: bytes from one region to the next.
            count: number of regions.
        """
        key = position, tuple(sorted(sizes.items()))
        region = self._region(max(variant.program.arena_bytes, stride * count), position * stride)
        executor = variant.executors.pop(key, None)
        like = executor or next(iter(variant.executors.values()), None)
        if like is not None and like.arena is None:
            like.bind(region)
        if executor is None and like is not None:
            executor = like.resized(sizes)
        if executor is None:
            backend, listeners = self._backend, self._listeners
            executor = Executor(
                variant.program, self._store, backend, listeners, region, self._swarm, sizes
            )
            self._set_access_orders(executor)
            self._store.require_memory(executor.held_together)
        if executor.arena is not region:
            executor.bind(region)
        variant.executors[key] = executor
        if len(variant.executors) > MAX_SIZES:
            del variant.executors[next(iter(variant.executors))]
        return executor

    def _region(self, size: int, offset: int) -> Array:
        """The shared activation memory from an offset on, after growing it to a size."""
        if self._arena is None or self._arena.nbytes < size:
            for variant in self._variants.values():
                for executor in variant.executors.values():
                    executor.unbind()
            self._regions.clear()
            self._interleavings.clear()  # they may hold executors, and so memory, no longer in use
            self._arena = None  # freed before more is allocated
            self._arena, self._is_arena_used = self._backend.allocate(size), False
        if offset not in self._regions:
            self._regions[offset] = self._arena[offset:]
        return self._regions[offset]

    def close(self) -> None:
        """Frees programs and activations; no step may follow."""
        self._variants.clear()
        self._interleavings.clear()
        self._regions.clear()
        self._arena = None

    # Programs.

    def submit(self, program: Program, needed: ProgramNeeded) -> Accepted:
        if program.wafers != self._swarm.size:
            raise DataError(
                "program: must run on the number of wafers that it was compiled for, "
                f"{program.wafers}. Received: {self._swarm.size}. Compile the model with that "
                "num_csx."
            )
        fault = self.capacity_error(program)
        if fault is not None:
            raise fault
        request, number = needed.request, needed.program
        if number is not None and number not in self._variants:
            raise DataError(
                "program: must replace one that the session has. Received: number "
                f"{number}. Submit it as a new one."
            )
        bounds = {symbol.name: symbol.bound for symbol in program.symbols}
        variant = _Variant(
            next(self._numbers) if number is None else number,
            program,
            request.updates,
            request.kind,
            bounds,
            last_use=self._uses,
        )
        sizes = variant.sizes_for(request)
        wanted = {**(sizes or {}), **needed.sizes}
        if sizes is None or any(bounds.get(name, size) < size for name, size in wanted.items()):
            raise DataError(
                "program: must serve the request that it was compiled for. Received: features "
                f"{ {name: str(type) for name, type in program.given.items()} } with bounds "
                f"{bounds} for {request}. Correct the program source."
            )
        if number is not None:
            variant.has_run = self._variants[number].has_run
        self._variants[variant.number] = variant
        if len(self._variants) <= MAX_VARIANTS:
            return Accepted(variant.number)
        oldest = min(self._variants.values(), key=lambda variant: variant.last_use)
        del self._variants[oldest.number]
        return Accepted(variant.number, (oldest.number,))

    @property
    def activation_limit(self) -> int:
        return activation_limit(self._store.planned_resident_bytes, self.held_bytes, self._share)

    def capacity_error(self, program: Program) -> Optional[BatchCapacityError]:
        """See SessionProtocol.capacity_error; variables are sharded first, and own shards count."""
        store = self._store
        if program.wafers > 1 and program.owners:
            store.shard(program.owners)
        return capacity_error(
            program, store.total_resident_bytes, self.held_bytes, self._share, self._of_share
        )


def _run_one(executor: Executor) -> Callable[..., list[dict[str, Array]]]:
    return lambda features: [executor.run(*features)]


def _contiguous(array: Any) -> Array:
    """An array in C order; NumPy scalars are copied, as their memory is temporary."""
    return np.require(array if isinstance(array, np.ndarray) else np.array(array), None, "C")


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    """Name of a dtype; cached, as NumPy builds it at every access."""
    return str(dtype.name)
