"""Runs the micro-batches of a step layer by layer, so that weights stream in once for all of them.

    micro-batch 1: layer 0    micro-batch 2: layer 0    micro-batch 1: layer 1    ...

Every micro-batch then needs its own activation memory. The order is used only if every variable is
read and written as if the micro-batches ran sequentially.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from cerebras_tf.errors import CapacityError
from cerebras_tf.ir import Array
from cerebras_tf.ir.program import Program
from cerebras_tf.ir.schedule import Free, Run, StreamIn, StreamOut
from cerebras_tf.memoryx.store import Store
from cerebras_tf.runtime.executor import Executor, LoadedEntry, groups_held

_ALIGNMENT = 4096  # bytes; of the activation memory of a micro-batch
_Key = tuple[int, str]  # number of a layer, and "forward" or "backward"


@dataclass
class Block:
    """Entries of one micro-batch that run without a break.

    Attributes:
        micro_batch: its number.
        entries: loaded entries of its executor.
    """

    micro_batch: int
    entries: list[LoadedEntry]


@dataclass
class Interleaving:
    """The order in which the entries of several executors run.

    Attributes:
        executors: one for each micro-batch, in order.
        together: number of micro-batches whose layers alternate.
        blocks: what runs, in order.
        acquisitions: names of the groups of variables that a step streams in, in order.
    """

    executors: Sequence[Executor]
    together: int
    blocks: list[Block] = field(default_factory=list)
    acquisitions: list[list[str]] = field(default_factory=list)

    def run(self, features: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Runs a step.

        Args:
            features: of every micro-batch, as Executor.run takes them.

        Returns:
            The wanted values of every micro-batch.
        """
        left = Counter(block.micro_batch for block in self.blocks)
        started = set[int]()
        found: dict[int, dict[str, Array]] = {}
        self.executors[0].backend.begin()
        try:
            for block in self.blocks:
                number = block.micro_batch
                if number not in started:
                    started.add(number)
                    self.executors[number].start(features[number])
                self.executors[number].execute(block.entries)
                left[number] -= 1
                if not left[number]:
                    found[number] = self.executors[number].finish()
                    self.executors[number].release_all()
            return [found[number] for number in range(len(self.executors))]
        finally:
            for number in started:
                self.executors[number].release_all()


def count_together(programs: Sequence[Program], store: Store, activation_bytes: int) -> int:
    """Number of micro-batches that run layer by layer, by the memory for their activations.

    It is 1 if all variables stay in memory, as nothing is saved then.

    Args:
        programs: of the micro-batches.
        store: the variables.
        activation_bytes: memory for activations and scratch memory.
    """
    if store.memory_limit is None or store.total_resident_bytes < store.memory_limit:
        return 1
    scratch_bytes = max(program.scratch_bytes for program in programs)
    each = align(max(program.arena_bytes for program in programs))
    return max(1, min((activation_bytes - scratch_bytes) // each, len(programs)))


def align(size: int) -> int:
    """Bytes from the activation memory of a micro-batch to that of the next."""
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT


def interleave(
    executors: Sequence[Executor], together: int, store: Store
) -> Optional[Interleaving]:
    """The order of a step's micro-batches.

    Args:
        executors: one for each micro-batch, in order.
        together: number of micro-batches whose layers alternate; 1 to run them sequentially.
        store: the variables.

    Returns:
        None if they must run sequentially.
    """
    found = Interleaving(executors, together)
    numbers = range(len(executors))
    for start in numbers[::together]:
        chunk = numbers[start : start + together]
        if len(chunk) == 1:
            found.blocks.append(Block(start, executors[start].entries))
            continue
        blocks = _merged(executors, chunk)
        if blocks is None or not _fits(executors, blocks, store):
            return None
        found.blocks += blocks
    for block in found.blocks:
        names = executors[block.micro_batch].names
        for loaded in block.entries:
            if isinstance(loaded.entry, StreamIn):
                found.acquisitions.append([names[slot] for slot in loaded.entry.slots])
    return found


def _merged(executors: Sequence[Executor], chunk: Sequence[int]) -> Optional[list[Block]]:
    """The blocks of some micro-batches in the order of the last one's layers.

    None if their layers differ, or if this changes the order of reads and writes of a variable.
    """
    *earlier, last = chunk
    left = {number: _by_layer(executors[number].entries) for number in chunk}
    blocks = []
    for key, entries in left[last]:
        for number in earlier:
            if left[number] and left[number][0][0] == key:
                blocks.append(Block(number, left[number].pop(0)[1]))
        blocks.append(Block(last, entries))
    if any(left[number] for number in earlier) or _changes_order(executors, blocks):
        return None
    return blocks


def _by_layer(entries: Iterable[LoadedEntry]) -> list[tuple[_Key, list[LoadedEntry]]]:
    """Entries by layer and direction; updates belong to the layer before them."""
    found: list[tuple[_Key, list[LoadedEntry]]] = []
    arriving: list[LoadedEntry] = []  # variables stream in for the layer that follows
    for loaded in entries:
        entry = loaded.entry
        if isinstance(entry, StreamIn):
            arriving.append(loaded)
            continue
        if isinstance(entry, Run):
            key = entry.layer, entry.direction
            if not found or (entry.direction != "update" and found[-1][0] != key):
                found.append((key, []))
        if not found or (arriving and not isinstance(entry, Run)):
            arriving.append(loaded)
            continue
        found[-1][1].extend([*arriving, loaded])
        arriving = []
    if arriving and found:
        found[-1][1].extend(arriving)
    return found


@dataclass(eq=False)
class _Use:
    """The interval in which a micro-batch holds a variable."""

    micro_batch: int
    start: int
    end: int
    writes: bool = False


def _changes_order(executors: Sequence[Executor], blocks: Iterable[Block]) -> bool:
    """Whether a variable is used in another order than that of the micro-batches.

    Uses that only read may have any order.
    """
    for uses in _uses(executors, blocks).values():
        for one in (use for use in uses if use.writes):
            for other in uses:
                if other.micro_batch < one.micro_batch and other.end >= one.start:
                    return True
                if other.micro_batch > one.micro_batch and other.start <= one.end:
                    return True
    return False


def _uses(executors: Sequence[Executor], blocks: Iterable[Block]) -> dict[str, list[_Use]]:
    """Every use of every variable."""
    uses: dict[str, list[_Use]] = defaultdict(list)
    held: dict[tuple[int, str], _Use] = {}
    for at, (number, loaded) in enumerate(_entries(blocks)):
        names, entry = executors[number].names, loaded.entry
        if isinstance(entry, StreamIn):
            for slot in entry.slots:
                name = names[slot]
                held[number, name] = use = _Use(number, at, at)
                uses[name].append(use)
        elif isinstance(entry, StreamOut):
            for name, _ in entry.stores:
                use = held.get((number, name)) or _Use(number, at, at)
                if (number, name) not in held:
                    uses[name].append(use)
                use.writes, use.end = True, at
        elif isinstance(entry, Free):
            for name in (names[slot] for slot in entry.slots if slot in names):
                if (number, name) in held:
                    held.pop((number, name)).end = at
    for use in held.values():
        use.end = at  # until the end
    return uses


def _entries(blocks: Iterable[Block]) -> Iterator[tuple[int, LoadedEntry]]:
    for block in blocks:
        for loaded in block.entries:
            yield block.micro_batch, loaded


def _fits(executors: Sequence[Executor], blocks: Iterable[Block], store: Store) -> bool:
    """Whether the store can hold what micro-batches hold at once."""
    groups = groups_held(
        (number, executors[number].names, loaded.entry) for number, loaded in _entries(blocks)
    )
    try:
        store.require_memory(groups)
    except CapacityError:
        return False
    return True
