"""Compiles and runs the programs of a captured graph.

The forward and the backward pass are one program, which runs in two halves. Between them the
activations stay where they were computed: nothing is copied, and nothing is computed twice. A call
has its activations to itself until its backward pass has run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

import numpy as np

from cerebras_tf.compiler.assemble import replan
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import CapacityError, CerebrasError, GraphError, SizeLimitError
from cerebras_tf.ir import Array, Dim, Size
from cerebras_tf.ir.dimensions import UNLIMITED
from cerebras_tf.ir.program import HEAP, Program
from cerebras_tf.ir.schedule import Entry, Run
from cerebras_tf.memoryx.store import MemoryStore
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.torch_compile.graph import COTANGENT, GRADIENT, CapturedGraph

# Held while a program runs: kernels share threads and scratch memory.
LOCK = threading.RLock()
# Sizes of one program whose executors stay loaded.
_MAX_SIZES = 64
_COTANGENTS, _GRADIENTS = COTANGENT.format(""), GRADIENT.format("")
# In place of a cotangent until the backward pass.
_NOTHING = np.empty(0, np.float32)


@dataclass(eq=False)
class _Arena:
    """Memory for activations, and the executor that was bound to it last."""

    memory: Array
    executor: Optional[Executor] = None

    def bind(self, executor: Executor) -> None:
        """Gives the memory to an executor."""
        if self.executor is not executor:
            self.unbind()
            executor.bind(self.memory)
            self.executor = executor

    def unbind(self) -> None:
        """Takes the memory from its executor."""
        if self.executor is not None:
            self.executor.unbind()
            self.executor = None


# Arenas that no call uses, of all graphs, as long as there are any.
_free: list[_Arena] = []
_alive: set[int] = set()  # identities of Programs


def _take_arena(size: int, executors: Collection[Executor]) -> _Arena:
    """An arena of at least a size, if possible one that one of these executors is bound to."""
    large = [arena for arena in _free if arena.memory.nbytes >= size]
    if large:
        found = min(large, key=lambda a: (a.executor not in executors, a.memory.nbytes))
        _free.remove(found)
        return found
    if _free:  # the largest is freed before a larger one is allocated
        largest = max(_free, key=lambda arena: arena.memory.nbytes)
        _free.remove(largest)
        largest.unbind()
        del largest
    return _Arena(CpuBackend().allocate(max(size, 1)))


def _forget(programs: int) -> None:
    """Frees all arenas with the last programs."""
    _alive.discard(programs)
    if not _alive:
        _free.clear()


@dataclass(eq=False)
class _Compiled:
    """A program with its executors.

    Attributes:
        backward: number of the first entry of the schedule that belongs to the backward pass.
        read_later: names of the features that the backward pass reads.
        executors: those that no call uses, by the sizes of the symbols.
    """

    program: Program
    backward: int
    read_later: frozenset[str]
    executors: dict[tuple[int, ...], list[Executor]] = field(default_factory=dict)

    def take(self, sizes: Mapping[str, int]) -> tuple[Executor, _Arena]:
        """An executor for these sizes, and the memory that it is bound to."""
        idle = self.executors.pop(key := tuple(sizes.values()), [])
        arena = _take_arena(self.program.arena_bytes, idle)
        if arena.executor in idle:
            idle.remove(found := arena.executor)
        elif idle:
            found = idle.pop()
        else:
            found = self._loaded(sizes, arena)
        self.executors[key] = idle  # the last one that was used
        if len(self.executors) > _MAX_SIZES:
            del self.executors[next(iter(self.executors))]
        arena.bind(found)
        return found, arena

    def _loaded(self, sizes: Mapping[str, int], arena: _Arena) -> Executor:
        like = next((item for idle in self.executors.values() for item in idle), None)
        if like is None:
            backend = CpuBackend()
            made = Executor(self.program, MemoryStore([]), backend, arena=arena.memory, sizes=sizes)
        else:
            arena.bind(like)
            made = like.resized(sizes)
        return made


class Call:
    """A call whose forward pass has run, with its activations until they are released."""

    _arena: Optional[_Arena] = None
    has_run_backward = False

    def __init__(
        self, compiled: _Compiled, sizes: Mapping[str, int], features: Mapping[str, Array]
    ) -> None:
        self._compiled, self._key = compiled, tuple(sizes.values())
        self.executor, self._arena = compiled.take(sizes)
        executor = self.executor
        executor.backend.begin()
        later = {name: _NOTHING for name in executor.plan.features if name not in features}
        executor.start({**features, **later})
        executor.execute(executor.entries[: compiled.backward])

    @property
    def results(self) -> Collection[str]:
        """Names of the results."""
        return self._compiled.program.results

    @property
    def read_later(self) -> frozenset[str]:
        """Names of the features that the backward pass reads."""
        return self._compiled.read_later

    def value(self, name: str) -> Array:
        """A result, not copied."""
        return self.executor.value(name)

    def run_backward(self, cotangents: Mapping[str, Array]) -> None:
        """Runs the backward pass. It overwrites activations, so that it runs once."""
        executor, self.has_run_backward = self.executor, True
        for name, array in cotangents.items():
            executor.table[executor.plan.features[name]] = array
        executor.execute(executor.entries[self._compiled.backward :])

    def release(self) -> None:
        """Gives the memory of the activations to other calls."""
        arena, self._arena = self._arena, None
        if arena is None:
            return
        for slot in self.executor.plan.features.values():
            self.executor.table[slot] = None  # they are the caller's memory
        idle = self._compiled.executors.get(self._key)
        if idle is None:
            arena.unbind()
        else:
            idle.append(self.executor)
        _free.append(arena)

    def __del__(self) -> None:
        with LOCK:
            self.release()


class Programs:
    """The programs of a graph for all sizes.

    Args:
        graph: what is compiled.
        cotangents: see CapturedGraph.lower.
    """

    def __init__(self, graph: CapturedGraph, cotangents: Collection[int]) -> None:
        self._graph, self._cotangents = graph, cotangents
        _alive.add(id(self))
        weakref.finalize(self, _forget, id(self))
        self._symbolic: Optional[_Compiled] = None
        self._limits: Optional[dict[str, int]] = {}  # of symbols; None without such a program
        self._static: dict[tuple[int, ...], _Compiled] = {}

    def prepare(self, sizes: Mapping[str, int]) -> _Compiled:
        """The program for these sizes of the symbols, compiled if there is none.

        Raises:
            UnsupportedOpError: operations have no IR form, or no gradient.
        """
        found = self._for_all_sizes(sizes) if sizes else None
        if found is None:
            key = tuple(sizes.values())
            if key not in self._static:
                self._static[key] = self._compile(sizes)
            found = self._static[key]
        return found

    def start(self, sizes: Mapping[str, int], features: Mapping[str, Array]) -> Call:
        """Runs the forward pass of a call."""
        compiled = self.prepare(sizes)
        return Call(compiled, sizes if compiled.program.symbols else {}, features)

    def _for_all_sizes(self, sizes: Mapping[str, int]) -> Optional[_Compiled]:
        """The program with symbols; None if there is none for these sizes."""
        while self._symbolic is None and self._limits is not None:
            limits = self._limits
            symbols = {
                name: Dim.symbol(name, size, limits.get(name, UNLIMITED))
                for name, size in sizes.items()
            }
            try:
                if any(size > limits.get(name, size) for name, size in sizes.items()):
                    return None
                found = self._compile(symbols)
                self._symbolic = found if not _has_unknown_sizes(found.program) else None
                self._limits = limits if self._symbolic is not None else None
            except SizeLimitError as error:
                smaller = {**limits, **error.limits}
                self._limits = smaller if smaller != limits else None
            except CapacityError:
                raise
            except CerebrasError:
                self._limits = None  # an error of the model is raised without symbols, too
        if self._symbolic is None or self._limits is None:
            return None
        if any(size > self._limits.get(name, size) for name, size in sizes.items()):
            return None
        bounds = {symbol.name: symbol.bound for symbol in self._symbolic.program.symbols}
        if any(sizes[name] > bound for name, bound in bounds.items()):
            larger = {name: max(bound, sizes[name]) for name, bound in bounds.items()}
            program = replan(self._symbolic.program, larger, CpuBackend().price)
            self._symbolic = replace(self._symbolic, program=program, executors={})
        return self._symbolic

    def _compile(self, symbols: Mapping[str, Size]) -> _Compiled:
        graph = self._graph
        options = Options(
            price=CpuBackend().price, precision=graph.precision, keep_float32=graph.keep_float32
        )
        for merge_loss in (True, False):
            step = graph.lower(symbols, self._cotangents)
            program = compile_step(step, replace(options, merge_loss=merge_loss))
            parts = _split(program)
            if parts is not None:
                return _Compiled(program, *parts)
        raise GraphError("program: outputs must not depend on cotangents. Received: one that does.")


def _has_unknown_sizes(program: Program) -> bool:
    return any(slot.kind == HEAP for slot in program.slots)


def _split(program: Program) -> Optional[tuple[int, frozenset[str]]]:
    """Splits the schedule after the last instruction that computes an output.

    Returns:
        The number of entries before, and the names of the features that later ones read; None if
        one before reads a cotangent.
    """
    if not program.schedule:  # the graph returns what it was given
        return 0, frozenset()
    wanted = {
        program.base_of(slot)
        for name, slot in program.results.items()
        if not name.startswith(_GRADIENTS)
    }
    cotangents = {slot for name, slot in program.features.items() if name.startswith(_COTANGENTS)}
    runs = [(at, entry) for at, entry in enumerate(program.schedule) if isinstance(entry, Run)]
    at, count = 0, 0  # the entry, and how many of its instructions are of the forward pass
    for number, run in runs:
        for place, item in enumerate(program.bodies[run.body]):
            if wanted.intersection(program.base_of(run.slots[i]) for i in item.outputs):
                at, count = number, place + 1
    cut = program.schedule[at]
    if isinstance(cut, Run) and count < len(body := program.bodies[cut.body]):
        is_shared = any(other.body == cut.body for _, other in runs if other is not cut)
        first = len(program.bodies) if is_shared else cut.body
        program.bodies[first : first + 1] = [body[:count]]
        program.bodies.append(body[count:])
        last = len(program.bodies) - 1
        program.schedule[at : at + 1] = [replace(cut, body=first), replace(cut, body=last)]
    if cotangents & _read_slots(program, program.schedule[: at + 1]):
        return None
    later = _read_slots(program, program.schedule[at + 1 :])
    return at + 1, frozenset(n for n, slot in program.features.items() if slot in later)


def _read_slots(program: Program, entries: Sequence[Entry]) -> set[int]:
    """The slots whose memory instructions read."""
    return {
        program.base_of(run.slots[i])
        for run in entries
        if isinstance(run, Run)
        for item in program.bodies[run.body]
        for i in item.inputs
    }
