"""The variables of a job with several wafers, each kept by the wafer that updates it.

A variable that another wafer owns is copied when it is acquired: all wafers acquire together, in
one order. What the next groups of the schedule need is on its way while a group is used. What is
written is stored by its owner alone.
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

# Groups of the schedule whose variables are on their way while one is used.
PREFETCHED_GROUPS = 2


def _disk_of(store: Store) -> Optional[tuple[str, int]]:
    """The computer and the device on which a store's files are; None where there are none."""
    folder = store.folder
    if folder is None or not os.path.isdir(folder):
        return None
    return socket.gethostname(), os.stat(folder).st_dev


class SharedStore(BaseStore):
    """Variables that live on one wafer each, or on all.

    Args:
        local: the store of this wafer, which may keep any of them.
        swarm: the wafers.
    """

    is_shared = True

    def __init__(self, local: Store, swarm: Swarm) -> None:
        super().__init__(local.specs.values())
        self._local = local
        self._swarm = swarm
        self._owners: dict[str, int] = {}
        self._step_values: set[str] = set()  # what each wafer writes and reads for itself
        self._elsewhere: set[str] = set()  # variables that have a value on another wafer
        self._held: dict[str, Array] = {}
        self._spare: dict[TensorType, list[Array]] = {}  # memory of copies that nobody holds
        self._max_copied = 0  # bytes of these and of copies that are held
        self._users: Counter[str] = Counter()
        self._dirty: set[str] = set()
        self._pending: dict[str, Pending] = {}
        self._order: Sequence[Sequence[str]] = ()
        self._next = 0  # number of the group that the schedule acquires next
        self._ahead = 0  # groups before this one are acquired already
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
            {name for name in owners if not self._is_here(name)},
            sum(other == disk for _, other in everyone),
        )

    def broadcast(self, names: Iterable[str], rank: int) -> None:
        """See Store.broadcast; variables with an owner are left out."""
        for name in names:
            if name not in self._owners:
                arrays = self._local.acquire([name])
                self._swarm.start_copy(arrays[0], rank).wait()
                self._local.release([name], [name] if self._swarm.rank != rank else [])

    def _is_here(self, name: str) -> bool:
        """Whether this wafer keeps a variable; what lives within a step is everybody's own."""
        return self._owners.get(name, self._swarm.rank) == self._swarm.rank

    @property
    def rank(self) -> int:
        return self._swarm.rank

    @property
    def local(self) -> Store:
        """See Store.local; what is acquired there goes to no other wafer."""
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
                self._bring(name, fresh)
        if scheduled:
            self._next += 1
            self._prefetch()
        for name in names:
            if name in self._pending:
                self._pending.pop(name).wait()
        return [self._held[name] for name in names]

    def _prefetch(self) -> None:
        """Acquires what the next groups need, so that it is on its way."""
        start, end = max(self._ahead, self._next), self._next + PREFETCHED_GROUPS
        for names in self._order[start:end]:
            for name in names:
                if name not in self._step_values:  # it may not be written yet
                    self._bring(name)
        self._ahead = max(start, min(end, len(self._order)))

    def _bring(self, name: str, fresh: bool = False) -> None:
        """Counts one user more; for the first, the variable sets out from its home."""
        self._users[name] += 1
        if self._users[name] > 1:
            return
        if self._is_here(name):
            (self._held[name],) = self._local.acquire([name], fresh)
        else:
            self._held[name] = self._memory_for(self.specs[name].type)
        if name in self._owners and not fresh:
            self._pending[name] = self._swarm.start_copy(self._held[name], self._owners[name])

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        """See Store.release; what lives on another wafer is only forgotten."""
        self._dirty.update(dirty)
        for name in names:
            if not self._users[name]:
                raise RuntimeError(f"store: {name} is released, but it was not acquired.")
            self._users[name] -= 1
            if not self._users[name]:
                self._drop(name)

    def _drop(self, name: str) -> None:
        if name in self._pending:
            self._pending.pop(name).wait()
        array = self._held.pop(name)
        if not self._is_here(name):
            self._keep_spare(self.specs[name].type, array)
        written = name in self._dirty
        self._dirty.discard(name)
        if self._is_here(name):
            self._local.release([name], [name] if written else [])
        elif written:
            self._elsewhere.add(name)
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
        """Keeps memory for the next copy: fresh memory costs a page fault a page in every step."""
        arrays = self._spare.pop(type, [])
        self._spare[type] = [*arrays, array]  # last, as it was used last
        self._drop_spare()

    def _drop_spare(self, more: int = 0) -> None:
        """Lets go of what was kept longest, where copies take more than is counted for them."""
        excess = self._copied_bytes + more - self._max_copied
        for kept in self._spare.values():
            while excess > 0 and kept:
                excess -= kept.pop().nbytes

    @property
    def _copied_bytes(self) -> int:
        """Bytes of copies of what lives elsewhere, and of memory that is kept for more."""
        copies = [a.nbytes for name, a in self._held.items() if not self._is_here(name)]
        return sum(copies) + sum(a.nbytes for arrays in self._spare.values() for a in arrays)

    def set_access_order(self, order: Sequence[Sequence[str]]) -> None:
        """See Store.set_access_order; the order in which all wafers acquire."""
        if order is not self._order:
            self._order = order
            self._next = self._ahead = 0
            self._max_copied = self._bytes_of_copies()

    def require_memory(self, groups: Iterable[Sequence[str]]) -> None:
        """See Store.require_memory; besides a group those ahead of it are held.

        Of what lives elsewhere there are copies in main memory.
        """
        width = PREFETCHED_GROUPS + 1
        windows = [
            {n for names in self._order[i : i + width] for n in names if self._is_here(n)}
            for i in range(len(self._order))
        ]
        largest = max(windows, key=self._bytes_of, default=set())
        self._local.require_memory(
            [sorted({n for n in names if self._is_here(n)} | largest) for names in groups]
        )

    def _bytes_of(self, names: Iterable[str]) -> int:
        return sum(self.specs[name].type.max_bytes for name in names if name in self.specs)

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """See Store.not_finite; every wafer looks at what it keeps, and all hear of all."""
        names = list(names)
        own = self._local.not_finite([name for name in names if self._is_here(name)])
        found = {name for theirs in self._swarm.objects(own) for name in theirs}
        return [name for name in names if name in found]

    def has_value(self, name: str) -> bool:
        """Whether the variable has a value, here or elsewhere."""
        return name in self._elsewhere or self._local.has_value(name)

    @property
    def version(self) -> int:
        return self._version + self._local.version

    def link_source(self, name: str, region: FileRegion) -> bool:
        """See Store.link_source; of what lives elsewhere, only that it has a value."""
        if self._is_here(name):
            return self._local.link_source(name, region)
        self._elsewhere.add(name)
        self._version += 1
        return True

    @property
    def io_stats(self) -> IoStats:
        """What this wafer has moved between memory and files."""
        return self._local.io_stats

    def close(self) -> None:
        self._held.clear()
        self._spare.clear()
        self._local.close()

    @property
    def resident_bytes(self) -> int:
        """See Store.resident_bytes; copies of what lives elsewhere included."""
        return self._local.resident_bytes + self._copied_bytes

    @property
    def planned_resident_bytes(self) -> int:
        """What a wafer takes where all keep alike; the same on all, dealt out or not."""
        sizes = [spec.type.max_bytes for spec in self.specs.values()]
        kept = -(-sum(sizes) // self._swarm.size)
        copies = (PREFETCHED_GROUPS + 2) * max(sizes, default=0)
        return min(kept, self._local.total_resident_bytes) + copies

    @property
    def total_resident_bytes(self) -> int:
        """See Store.total_resident_bytes: what lives here, and memory for copies of all others."""
        kept = sum(s.type.max_bytes for name, s in self.specs.items() if self._is_here(name))
        return min(kept, self._local.total_resident_bytes) + self._bytes_of_copies()

    def _bytes_of_copies(self) -> int:
        """The most of copies: of the groups ahead, and the largest of what is kept for more."""
        elsewhere = {name for name in self.specs if not self._is_here(name)}
        groups = [
            sum(self.specs[n].type.max_bytes for n in names if n in elsewhere)
            for names in self._order
        ]
        width = PREFETCHED_GROUPS + 1
        ahead = max((sum(groups[i : i + width]) for i in range(len(groups))), default=0)
        return ahead + max((self.specs[n].type.max_bytes for n in elsewhere), default=0)
