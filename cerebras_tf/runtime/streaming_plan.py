"""Plans a step from files before the first one: bytes of memory and disk, bytes moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from cerebras_tf.ir import Variable
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.disk import PlannedDisk
from cerebras_tf.memoryx.disk_speed import require_free
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.process_folder import require_usable
from cerebras_tf.memoryx.store import Store
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.interleave import count_together, interleave
from cerebras_tf.runtime.null import NullBackend, stand_in
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.swarmx.swarm import Alone

# Steps after which a store's content repeats from step to step.
_ROUNDS = 3


@dataclass(frozen=True)
class StreamingPlan:
    """Memory and traffic of a step from files; with several wafers, of one wafer.

    Attributes:
        weight_bytes: bytes of trained variables.
        state_bytes: bytes of other variables, mostly optimizer state.
        staged_bytes: bytes of gradients and activations that are spilled to files within a step.
        memory_bytes: main memory for these, and for copies of other wafers' variables.
        activation_bytes: main memory for activations and gradients.
        scratch_bytes: main memory for scratch memory of kernels.
        bytes_read: bytes that a step reads from files.
        bytes_written: bytes that a step writes to files.
        flops: floating point operations of a step.
        together: micro-batches that share one pass over the weights.
    """

    weight_bytes: int
    state_bytes: int
    staged_bytes: int
    memory_bytes: int
    activation_bytes: int
    scratch_bytes: int
    bytes_read: int
    bytes_written: int
    flops: int
    together: int = 1


def check_disk(specs: Iterable[Variable], folder: str, wafers: int = 1) -> None:
    """Raises StoreError where variables do not fit on the disk of a folder, or it cannot be made.

    Args:
        specs: the variables.
        folder: where they will be stored.
        wafers: number of wafers that store a shard each.
    """
    need = sum(spec.type.max_bytes for spec in specs) // wafers
    require_usable(folder)
    require_free(folder, need, "weights and optimizer state")


class _OneOf(Alone):
    """One of several wafers; the others are assumed to answer alike."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def objects(self, item: Any) -> list[Any]:
        return [item] * self.size


def _write(store: Store, names: Iterable[str]) -> None:
    """Gives variables values, sequentially."""
    for name in names:
        store.acquire([name], fresh=True)
        store.release([name], dirty=[name])


def plan_streaming(
    program: Program,
    specs: Iterable[Variable],
    max_bytes: int,
    backend: Backend,
    wafer: Optional[int] = None,
    micro_batches: Sequence[Program] = (),
    activation_bytes: Optional[int] = None,
) -> StreamingPlan:
    """Runs the program's schedule without arithmetic and without files.

    Args:
        program: what will run; sizes with a bound are taken at the bound.
        specs: the variables.
        max_bytes: main memory for variables.
        backend: prices instructions.
        wafer: the rank to plan for; None for a single wafer.
        micro_batches: programs of the step's micro-batches, in order; empty if it runs a whole
            batch.
        activation_bytes: main memory for the activations of micro-batches.

    Raises:
        CapacityError: variables that are used together do not fit into that memory.
    """
    specs = list(specs)
    programs = [_at_bounds(each, backend) for each in micro_batches or [program]]
    program = programs[-1]
    disk = PlannedDisk(max_bytes)
    here: Store = FileStore(specs, disk)
    kept, store = specs, here
    swarm = Alone() if wafer is None else _OneOf(wafer, program.wafers)
    if wafer is not None:
        store = SharedStore(here, swarm)
        store.shard(program.owners)
        kept = [spec for spec in specs if program.owners.get(spec.name, wafer) == wafer]
    sums = _sums(programs, here)
    here.reserve(sums)
    executors = [Executor(each, store, NullBackend(backend), swarm=swarm) for each in programs]
    if wafer is None:
        for executor in executors:
            here.require_memory(executor.held_together)
    _write(here, [spec.name for spec in kept])
    given = [] if micro_batches else [spec.name for spec in sums]  # written by other micro-batches
    together, read, written = _run(executors, here, store, disk, given, activation_bytes)
    asked = {name for names in executors[-1].local_acquisitions for name in names}
    staged = [program.slots[slot].type for name, slot in program.staged.items() if name in asked]
    if micro_batches:
        staged += [spec.type for spec in sums]
    return StreamingPlan(
        weight_bytes=sum(spec.type.max_bytes for spec in kept if spec.trainable),
        state_bytes=sum(spec.type.max_bytes for spec in kept if not spec.trainable),
        staged_bytes=sum(type.max_bytes for type in staged),
        memory_bytes=store.total_resident_bytes,
        activation_bytes=program.arena_bytes * together,
        scratch_bytes=program.scratch_bytes,
        bytes_read=read,
        bytes_written=written,
        flops=sum(each.flops for each in programs),
        together=together,
    )


def _sums(programs: Iterable[Program], store: Store) -> list[Variable]:
    """The sums over micro-batches: variables of the programs that are not in the store."""
    found = {
        name: Variable(name, program.slots[slot].type)
        for program in programs
        for name, slot in program.variables.items()
        if name not in store.specs
    }
    return list(found.values())


def _run(
    executors: Sequence[Executor],
    here: Store,
    store: Store,
    disk: PlannedDisk,
    given: Sequence[str],
    activation_bytes: Optional[int],
) -> tuple[int, int, int]:
    """Runs steps; returns how many micro-batches run together, bytes read and bytes written."""
    programs = [executor.plan for executor in executors]
    together = 1
    if len(executors) > 1:
        together = count_together(programs, store, activation_bytes or 0)
    schedule = interleave(executors, together, store) or interleave(executors, 1, store)
    assert schedule is not None
    order = schedule.acquisitions if len(executors) > 1 else executors[0].acquisitions
    features = [
        {name: stand_in(each.slots[slot].type) for name, slot in each.features.items()}
        for each in programs
    ]
    read = written = 0
    for _ in range(_ROUNDS):
        read, written = disk.io_stats.bytes_read, disk.io_stats.bytes_written
        store.set_access_order(order)
        if store is not here:
            here.set_access_order(executors[0].local_acquisitions)
            store.require_memory(executors[0].held_together)
        _write(here, given)
        schedule.run(features)
    moved = disk.io_stats
    return schedule.together, moved.bytes_read - read, moved.bytes_written - written


def _at_bounds(program: Program, backend: Backend) -> Program:
    """The program for the largest sizes that it serves."""
    sizes = {symbol.name: symbol.bound for symbol in program.symbols}
    return program.at(sizes, backend.price) if sizes else program
