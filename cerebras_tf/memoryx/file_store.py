"""A store on files: variables are in memory only while they are needed, or soon will be.

While a group of variables is used, threads prefetch the next groups and write evicted variables.
The variable that is needed last is evicted (Belady's rule, IBM Systems Journal 5 (2), 1966: no
other reads less if the order is known). Contents shared with a checkpoint never change: new values
go to new files, so that a checkpoint costs a few links.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Optional

from cerebras_tf.errors import CapacityError
from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES
from cerebras_tf.memoryx.disk import Disk
from cerebras_tf.memoryx.record_file import Record
from cerebras_tf.memoryx.store import BaseStore, FileRegion, IoStats, require_values
from cerebras_tf.quantities import gigabytes_not_below


class AccessOrder:
    """The groups of variables that every step acquires, and the current position.

    Attributes:
        order: as given.
        position: number of groups acquired so far, over all steps.
    """

    def __init__(self, order: Sequence[Sequence[str]]) -> None:
        self.order = order
        self.position = 0
        self._uses: dict[str, list[int]] = {}
        for number, names in enumerate(order):
            for name in names:
                self._uses.setdefault(name, []).append(number)

    def advance(self, names: Sequence[str]) -> bool:
        """Advances if the next group has these names; returns whether it has."""
        if not self.order or list(names) != list(self.group(self.position)):
            return False
        self.position += 1
        return True

    def group(self, position: int) -> Sequence[str]:
        """Names of a group."""
        return self.order[position % len(self.order)]

    def next_use(self, name: str) -> float:
        """Position of the next group with a variable; infinite if there is none."""
        uses = self._uses.get(name)
        if not uses:
            return float("inf")
        round_start = self.position - self.position % len(self.order)
        at = bisect.bisect_left(uses, self.position - round_start)
        if at < len(uses):
            return round_start + uses[at]
        return round_start + len(self.order) + uses[0]


# A file holds variables of about this many bytes together, or a single larger one.
FILE_BYTES = 1 << 30


class FileStore(BaseStore):
    """Variables on a disk; decides which of them are in memory, and when.

    Decisions depend on the calls alone and not on the disk's speed, so a planned disk predicts what
    a real one moves.

    Attributes:
        disk: as given.
    """

    def __init__(self, specs: Iterable[Variable], disk: Disk) -> None:
        super().__init__(specs)
        self._elsewhere: Collection[str] = ()  # variables that other wafers keep
        self._stores_on_disk = 1
        self._records: dict[str, Record] = {}
        self._numbers = itertools.count()  # of groups of variables that share a file
        self._place(self._specs.values())
        self.disk = disk
        self._resident_bytes = 0  # bytes of the records in memory
        self._max_resident_bytes = disk.max_bytes
        self._window = 0  # bytes of the groups that are read ahead
        self._access_order = AccessOrder([])
        self._ahead = 0  # groups before this position are in memory or being read
        self._version = 0

    def _place(self, specs: Iterable[Variable], lives_within_step: bool = False) -> None:
        """Gives variables their places in files: concatenated, in the order given."""
        number, offset = next(self._numbers), 0
        for spec in specs:
            record = Record(spec, number, offset, lives_within_step=lives_within_step)
            if offset and offset + record.size > FILE_BYTES:
                record.group, record.new_offset = number, offset = next(self._numbers), 0
            offset += record.size
            self._records[spec.name] = record

    @property
    def folder(self) -> Optional[str]:
        return self.disk.folder

    @property
    def memory_limit(self) -> int:
        return self.disk.max_bytes

    def set_shard(self, elsewhere: Collection[str], stores_on_disk: int) -> None:
        self._elsewhere, self._stores_on_disk = elsewhere, stores_on_disk

    def reserve(self, specs: Iterable[Variable]) -> None:
        """See Store.reserve; checks that everything not yet on the disk fits there."""
        new = [spec for spec in specs if spec.name not in self._records]
        self._place(new, lives_within_step=True)
        if new:
            mine = [r for name, r in self._records.items() if name not in self._elsewhere]
            need = sum(record.size for record in mine if record.file is None)
            self.disk.require_free(need * self._stores_on_disk)

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        self.disk.raise_failure()
        records = [self._records[name] for name in names]
        if fresh:
            self._unlink([record for record in records if record.skipped])
        else:
            require_values(self, names)
        self._access_order.advance(names)
        for record in records:
            record.use_count += 1
        try:
            self._load(records, fresh)
            self._read_ahead()
            return [self._wait_for(record) for record in records]
        except BaseException:
            for record in records:
                record.use_count -= 1
            blank = [r for r in dict.fromkeys(records) if r.is_blank and not r.use_count]
            self._evict([record for record in blank if record.buffer is not None])
            raise

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        for name in names:
            record = self._records[name]
            if not record.use_count:
                raise RuntimeError(f"store: {name} is released, but it was not acquired.")
            record.use_count -= 1
            if name in dirty:
                if record.skipped:
                    raise RuntimeError(f"store: {name} is read from a file, but it was written.")
                record.is_dirty, record.is_blank, record.has_value = True, False, True
                self._version += not record.lives_within_step
            elif record.is_blank and not record.use_count:
                self._evict([record])
            elif record.lives_within_step and not record.use_count:
                record.is_dirty = record.has_value = False  # reading it ends its life

    def require_memory(self, groups: Iterable[Sequence[str]]) -> None:
        found = [[self._records[name] for name in names] for names in groups]
        self._require_memory(max(found, key=_size_of, default=[]))

    def set_access_order(self, order: Sequence[Sequence[str]]) -> None:
        if order is self._access_order.order:
            return
        self._access_order = AccessOrder(order)
        self._ahead = 0
        self._window = max((self._size_of(names) for names in order), default=0)
        # Leaves memory for writes in progress, so that reads do not wait for them.
        most = self.disk.max_bytes
        self._max_resident_bytes = most - self._window if most >= 3 * self._window else most

    def has_value(self, name: str) -> bool:
        return self._records[name].has_value

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """See Store.not_finite; writes dirty records, and reads nothing."""
        self._write_all()
        return [name for name in names if not self._records[name].is_finite]

    @property
    def version(self) -> int:
        return self._version

    @property
    def resident_bytes(self) -> int:
        """Bytes of the buffers."""
        return self.disk.bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of the buffers once every variable has a value."""
        return min(self.disk.max_bytes, sum(r.size for r in self._records.values()))

    @property
    def linked_bytes(self) -> int:
        files = ((record.file, record.spec.type) for record in self._records.values())
        return sum(type.max_bytes for file, type in files if file is not None and not file.is_own)

    @property
    def io_stats(self) -> IoStats:
        return self.disk.io_stats

    def link_source(self, name: str, region: FileRegion) -> bool:
        record = self._records[name]
        type = record.spec.type
        skipped = region.offset % ALIGNMENT_BYTES if region.checksum is None else 0
        unaligned = skipped % type.storage_dtype.itemsize or not type.bytes
        if record.use_count or unaligned or not region.has_type(type):
            return False
        self.disk.finish([record])
        if record.reading is not None:
            self._wait_for(record)
        if not self.disk.link_source(record, region):
            return False
        if record.in_memory:
            record.is_dirty = False
            self._evict([record])
        record.checksum, record.skipped = region.checksum, skipped
        record.is_unchecked, record.has_value = region.checksum is not None, True
        record.is_finite = True
        self._version += 1
        return True

    def linkable_regions(self) -> Mapping[str, FileRegion]:
        self._write_all()
        return self.disk.linkable_regions(
            [r for r in self._records.values() if r.spec.name in self._specs]
        )

    def close(self) -> None:
        self.disk.close()

    def _write_all(self) -> None:
        """Writes dirty records, and waits for them."""
        dirty = [r for r in self._records.values() if r.is_dirty and not r.lives_within_step]
        for record in dirty:
            self._wait_for(record)
        self.disk.write(dirty, keep=True)
        with self._stalling():
            self.disk.finish(self._records.values())

    @contextlib.contextmanager
    def _stalling(self) -> Iterator[None]:
        """Within: counts the time as waiting for files."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.io_stats.stalled_s += time.perf_counter() - started

    def _unlink(self, records: Sequence[Record]) -> None:
        """Drops the values of records that are read from files of others."""
        self._evict([record for record in records if record.in_memory])
        for record in records:
            record.skipped, record.has_value = 0, False

    # Memory.

    def _load(self, records: Sequence[Record], fresh: bool) -> None:
        """Starts to read the records that are not in memory."""
        missing = [record for record in dict.fromkeys(records) if not record.in_memory]
        if not missing:
            return
        need = sum(record.size for record in missing)
        if not self._free_memory(need, -1):  # prefetching and writing have to wait
            self._require_memory([r for r in self._records.values() if r.use_count])
            self._evict([r for r in self._records.values() if r.in_memory and not r.use_count])
        self._resident_bytes += need
        if not fresh:
            self.disk.read(missing)
            return
        for record in missing:
            with self._stalling():  # until others are written
                record.buffer, record.is_blank = self.disk.take(record.size), True

    def _require_memory(self, records: Sequence[Record]) -> None:
        need, most = _size_of(records), self.disk.max_bytes
        if need <= most:
            return
        largest = max(records, key=lambda record: (record.size, record.spec.type.max_bytes))
        raise CapacityError(
            "memoryx_ram_gb: must be large enough for variables that are used together, "
            f"{need / 1e9:.3g} GB (the largest is {largest.spec.name}). Received: {most / 1e9:g} "
            f"GB. Set it to {gigabytes_not_below(need)}."
        )

    def _free_memory(self, need: int, beyond: float) -> bool:
        """Evicts records that are needed after a position; returns whether `need` bytes fit."""
        lack = self._resident_bytes + need - self._max_resident_bytes
        if lack <= 0:
            return True
        next_use = self._access_order.next_use
        idle = [
            (next_use(name), record)
            for name, record in self._records.items()
            if record.in_memory and not record.use_count
        ]
        idle.sort(key=lambda item: item[0], reverse=True)
        leaving = []
        for position, record in idle:
            if lack <= 0 or position <= beyond:
                break
            leaving.append(record)
            lack -= record.size
        if lack > 0:
            return False
        self._evict(leaving)
        return True

    def _evict(self, records: Sequence[Record]) -> None:
        for record in records:
            self._wait_for(record)
        for record in records:
            self._resident_bytes -= record.size
            record.is_blank = False
            if record.has_value:
                self._ahead = min(self._ahead, int(min(self._use_of(record), self._ahead)))
        self.disk.write([record for record in records if record.is_dirty], keep=False)
        for record in records:
            if record.buffer is not None:
                self.disk.give(record.buffer)
                record.buffer = None

    def _size_of(self, names: Sequence[str]) -> int:
        return sum(self._records[name].size for name in dict.fromkeys(names))

    def _use_of(self, record: Record) -> float:
        return self._access_order.next_use(record.spec.name)

    def _read_ahead(self) -> None:
        """Starts to read the next group, and more groups while they are small together.

        Of a group that is too large, variables are read as far as they fit: else an embedding would
        be read during the tiny group before it, which hides no reading. Reading further ahead would
        evict what the next step needs.
        """
        at = self._access_order
        self._ahead = max(self._ahead, at.position)
        # Micro-batches acquire the same variables: each counts once, those in use never.
        known = {r for r in self._records.values() if r.use_count}
        before = 0
        for position in range(at.position, self._ahead):
            before += self._add_size(known, position)
        while self._ahead < at.position + len(at.order):
            records = [self._records[name] for name in dict.fromkeys(at.group(self._ahead))]
            size = _size_of(r for r in records if r not in known)
            is_whole = not before or before + size <= self._window
            missing = [r for r in records if r.has_value and not r.in_memory]
            if not is_whole:
                free = self._window - before - _size_of(r for r in records if r.in_memory)
                parts = [[record] for record in _first_of(missing, free)]
            else:
                parts = [missing]
            for part in parts:
                need = _size_of(part)
                if need and not self._free_memory(need, self._ahead):
                    return
                self._resident_bytes += need
                self.disk.read(part)
            if not is_whole:
                return
            before += self._add_size(known, self._ahead)
            self._ahead += 1

    def _add_size(self, known: set[Record], position: int) -> int:
        """Adds the records of a group to `known`; returns the bytes of the new ones."""
        new = {self._records[name] for name in self._access_order.group(position)} - known
        known |= new
        return _size_of(new)

    def _wait_for(self, record: Record) -> Array:
        """The record's array, after waiting until it is read."""
        if record.reading is not None:
            with self._stalling():
                record.buffer = record.reading.result()
            self.disk.raise_failure()
            record.reading = None
            record.is_unchecked = False
        return self.disk.array(record)


def _size_of(records: Iterable[Record]) -> int:
    """Bytes of records, each counted once."""
    return sum(record.size for record in dict.fromkeys(records))


def _first_of(records: Iterable[Record], most: int) -> Iterator[Record]:
    """The first records that take at most this many bytes together."""
    for record in records:
        most -= record.size
        if most < 0:
            return
        yield record
