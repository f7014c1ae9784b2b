"""The variables of a job with several wafers, each stored by its owner.

All wafers acquire variables together, in the same order; owners broadcast them. While a group of
the schedule is used, the next groups are prefetched. Only the owner stores new values.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Optional

import numpy as np

from cerebras_tf.errors import SwarmError
from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.memoryx.store import BaseStore, FileRegion, IoStats, Store
from cerebras_tf.swarmx.swarm import Pending, Swarm

# Groups of the schedule that are prefetched while one is used.
PREFETCHED_GROUPS = 2


def _disk_of(store: Store) -> Optional[tuple[str, int]]:
    """Host name and device of a store's files; None without files."""
    folder = store.folder
    if folder is None or not os.path.isdir(folder):
        return None
    return socket.gethostname(), os.stat(folder).st_dev


class SharedStore(BaseStore):
    """Variables that are stored by one wafer each, or by all.

    Args:
        local: the store of this wafer.
        swarm: the wafers.
    """

    is_shared = True

    def __init__(self, local: Store, swarm: Swarm) -> None:
        super().__init__(local.specs.values())
        self._local = local
        self._swarm = swarm
        self._owners: dict[str, int] = {}
        self._step_values: set[str] = set()  # values that live within a step, which are not shared
        self._remote: set[str] = set()  # remote variables that have a value
        self._held: dict[str, Array] = {}
        self._spare: dict[TensorType, list[Array]] = {}  # free memory of copies
        self._max_copied = 0  # most bytes of copies, free memory included
        self._use_count: Counter[str] = Counter()
        self._dirty: set[str] = set()
        self._pending: dict[str, Pending] = {}
        self._order: Sequence[Sequence[str]] = ()
        self._next = 0  # index of the next group of the schedule
        self._ahead = 0  # groups before this index are acquired
        self._version = 0

    def shard(self, owners: Mapping[str, int]) -> None:
        """See Store.shard; all wafers call it together."""
        if self._owners == owners:
            return
        if self._owners:
            moved = sorted(n for n, owner in owners.items() if self._owners.get(n) != owner)
            raise SwarmError(
                "num_csx: every step of a training must leave variables with their owners. "
                f"Received: another owner of {', '.join(moved[:3])}. Train with one wafer."
            )
        disk = _disk_of(self._local)
        everyone = self._swarm.objects((dict(owners), disk))
        if any(other != owners for other, _ in everyone):
            raise SwarmError(
                "num_csx: every wafer must run the same program. Received: programs with different "
                "owners of variables. Build the same model on every rank."
            )
        self._owners = dict(owners)
        self._max_copied = self._bytes_of_copies()
        self._local.set_shard(
            {name for name in owners if not self._is_local(name)},
            sum(other == disk for _, other in everyone),
        )

    def broadcast(self, names: Iterable[str], rank: int) -> None:
        """See Store.broadcast; variables with an owner are left out."""
        for name in names:
            if name not in self._owners:
                arrays = self._local.acquire([name])
                self._swarm.start_copy(arrays[0], rank).wait()
                self._local.release([name], [name] if self._swarm.rank != rank else [])

    def _is_local(self, name: str) -> bool:
        """Whether this wafer stores a variable, or the value lives within a step."""
        return self._owners.get(name, self._swarm.rank) == self._swarm.rank

    @property
    def rank(self) -> int:
        return self._swarm.rank

    @property
    def local(self) -> Store:
        """See Store.local; its variables are not broadcast."""
        return self._local

    @property
    def folder(self) -> Optional[str]:
        return self._local.folder

    @property
    def memory_limit(self) -> Optional[int]:
        return self._local.memory_limit

    def reserve(self, specs: Iterable[Variable]) -> None:
        specs = list(specs)
        self._step_values.update(spec.name for spec in specs)
        self._local.reserve(specs)

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; all wafers call it together, in one order."""
        if self._next == len(self._order):
            self._next = self._ahead = 0
        scheduled = (
            not fresh
            and self._next < len(self._order)
            and list(names) == list(self._order[self._next])
        )
        is_ahead = scheduled and self._next < self._ahead
        for name in names:
            if not is_ahead or name in self._step_values:
                self._fetch(name, fresh)
        if scheduled:
            self._next += 1
            self._prefetch()
        for name in names:
            if name in self._pending:
                self._pending.pop(name).wait()
        return [self._held[name] for name in names]

    def _prefetch(self) -> None:
        """Acquires the next groups, so that their broadcasts start."""
        start, end = max(self._ahead, self._next), self._next + PREFETCHED_GROUPS
        for names in self._order[start:end]:
            for name in names:
                if name not in self._step_values:  # may not be written yet
                    self._fetch(name)
        self._ahead = max(start, min(end, len(self._order)))

    def _fetch(self, name: str, fresh: bool = False) -> None:
        """Counts an acquisition; the first one starts the broadcast."""
        self._use_count[name] += 1
        if self._use_count[name] > 1:
            return
        if self._is_local(name):
            (self._held[name],) = self._local.acquire([name], fresh)
        else:
            self._held[name] = self._memory_for(self.specs[name].type)
        if name in self._owners and not fresh:
            self._pending[name] = self._swarm.start_copy(self._held[name], self._owners[name])

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        """See Store.release; copies of remote variables are dropped."""
        self._dirty.update(dirty)
        for name in names:
            if not self._use_count[name]:
                raise RuntimeError(f"store: {name} is released, but it was not acquired.")
            self._use_count[name] -= 1
            if not self._use_count[name]:
                self._drop(name)

    def _drop(self, name: str) -> None:
        if name in self._pending:
            self._pending.pop(name).wait()
        array = self._held.pop(name)
        if not self._is_local(name):
            self._keep_spare(self.specs[name].type, array)
        written = name in self._dirty
        self._dirty.discard(name)
        if self._is_local(name):
            self._local.release([name], [name] if written else [])
        elif written:
            self._remote.add(name)
            self._version += 1

    def _memory_for(self, type: TensorType) -> Array:
        """Memory of a copy."""
        spare = self._spare.get(type)
        if spare:
            return spare.pop()
        found = np.empty(type.static_shape, type.storage_dtype)
        self._drop_spare(found.nbytes)
        return found

    def _keep_spare(self, type: TensorType, array: Array) -> None:
        """Keeps memory for the next copy: new memory would cost page faults in every step."""
        arrays = self._spare.pop(type, [])
        self._spare[type] = [*arrays, array]  # most recently used last
        self._drop_spare()

    def _drop_spare(self, more: int = 0) -> None:
        """Frees the memory that was unused longest, if copies take more than planned."""
        excess = self._copied_bytes + more - self._max_copied
        for kept in self._spare.values():
            while excess > 0 and kept:
                excess -= kept.pop().nbytes

    @property
    def _copied_bytes(self) -> int:
        """Bytes of copies of remote variables, and of free memory for copies."""
        copies = [a.nbytes for name, a in self._held.items() if not self._is_local(name)]
        return sum(copies) + sum(a.nbytes for arrays in self._spare.values() for a in arrays)

    def set_access_order(self, order: Sequence[Sequence[str]]) -> None:
        """See Store.set_access_order; the order in which all wafers acquire."""
        if order is not self._order:
            self._order = order
            self._next = self._ahead = 0
            self._max_copied = self._bytes_of_copies()

    def require_memory(self, groups: Iterable[Sequence[str]]) -> None:
        """See Store.require_memory; groups that are prefetched count, too.

        Copies of remote variables are in main memory.
        """
        width = PREFETCHED_GROUPS + 1
        windows = [
            {n for names in self._order[i : i + width] for n in names if self._is_local(n)}
            for i in range(len(self._order))
        ]
        largest = max(windows, key=self._bytes_of, default=set())
        self._local.require_memory(
            [sorted({n for n in names if self._is_local(n)} | largest) for names in groups]
        )

    def _bytes_of(self, names: Iterable[str]) -> int:
        return sum(self.specs[name].type.max_bytes for name in names if name in self.specs)

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """See Store.not_finite; every wafer checks its own variables, and all get all names."""
        names = list(names)
        own = self._local.not_finite([name for name in names if self._is_local(name)])
        found = {name for theirs in self._swarm.objects(own) for name in theirs}
        return [name for name in names if name in found]

    def has_value(self, name: str) -> bool:
        """Whether the variable has a value on any wafer."""
        return name in self._remote or self._local.has_value(name)

    @property
    def version(self) -> int:
        return self._version + self._local.version

    def link_source(self, name: str, region: FileRegion) -> bool:
        """See Store.link_source; for remote variables, records that they have a value."""
        if self._is_local(name):
            return self._local.link_source(name, region)
        self._remote.add(name)
        self._version += 1
        return True

    @property
    def io_stats(self) -> IoStats:
        """See Store.io_stats; of this wafer."""
        return self._local.io_stats

    def close(self) -> None:
        self._held.clear()
        self._spare.clear()
        self._local.close()

    @property
    def resident_bytes(self) -> int:
        """See Store.resident_bytes; includes copies of remote variables."""
        return self._local.resident_bytes + self._copied_bytes

    @property
    def planned_resident_bytes(self) -> int:
        """See Store.planned_resident_bytes; assumes equal shards."""
        sizes = [spec.type.max_bytes for spec in self.specs.values()]
        kept = -(-sum(sizes) // self._swarm.size)
        copies = (PREFETCHED_GROUPS + 2) * max(sizes, default=0)
        return min(kept, self._local.total_resident_bytes) + copies

    @property
    def total_resident_bytes(self) -> int:
        """See Store.total_resident_bytes; includes memory for copies."""
        kept = sum(s.type.max_bytes for name, s in self.specs.items() if self._is_local(name))
        return min(kept, self._local.total_resident_bytes) + self._bytes_of_copies()

    def _bytes_of_copies(self) -> int:
        """Most bytes of copies: of the prefetched groups, and one largest variable."""
        elsewhere = {name for name in self.specs if not self._is_local(name)}
        groups = [
            sum(self.specs[n].type.max_bytes for n in names if n in elsewhere)
            for names in self._order
        ]
        width = PREFETCHED_GROUPS + 1
        ahead = max((sum(groups[i : i + width]) for i in range(len(groups))), default=0)
        return ahead + max((self.specs[n].type.max_bytes for n in elsewhere), default=0)
