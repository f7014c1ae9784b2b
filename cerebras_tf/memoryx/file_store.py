"""A store on files: variables come into memory when they are needed and leave it when they are not.

Threads read what the next groups need while a group is used, and write what must make room. What
leaves memory is what is needed last of all (Belady's rule, IBM Systems Journal 5 (2), 1966: no
other reads less where the order is known). Contents that a checkpoint shares are never changed: new
ones go to new files, so that a checkpoint costs a few links.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional

from cerebras_tf.errors import CapacityError
from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES, Buffers
from cerebras_tf.memoryx.bundle import Entry
from cerebras_tf.memoryx.itinerary import Itinerary
from cerebras_tf.memoryx.record import Record, Transfers
from cerebras_tf.memoryx.record_file import RecordFile
from cerebras_tf.memoryx.store import Traffic, require_values
from cerebras_tf.memoryx.store_folder import StoreFolder

# A file holds variables of about this many bytes together, or a single larger one.
FILE_BYTES = 1 << 30


class FileStore:
    """Variables in files of a folder of their own, with so much of main memory at most.

    The folder goes when the store is closed, or when another one is made where the process was
    killed: what must last is in checkpoints, which share its contents by links.

    Args:
        specs: the variables.
        folder: where the store makes its folder.
        most_bytes: bytes of main memory for variables.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, specs: Iterable[Variable], folder: str, most_bytes: int) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._records: dict[str, Record] = {}
        self._numbers = itertools.count()  # of groups of variables that share a file
        self._place(self._specs.values())
        self._folder = StoreFolder(Path(folder))
        self._files: list[RecordFile] = []
        self._current: dict[int, RecordFile] = {}  # what is written, by number
        # Files of checkpoints by device and number; None where they cannot be linked.
        self._adopted: dict[tuple[int, int], Optional[RecordFile]] = {}
        self._names = itertools.count()
        self._buffers = Buffers(most_bytes)
        self._transfers = Transfers(self._buffers)
        self._taken = 0  # bytes of the records that are here
        self._most_taken = most_bytes
        self._window = 0  # bytes of the groups that are read ahead
        self._itinerary = Itinerary([])
        self._ahead = 0  # groups before this position are here, or on their way
        self._version = 0
        # Holds no reference to the store, so that one that is forgotten is closed as well.
        self._finalizer = weakref.finalize(
            self, _close, self._transfers, self._buffers, self._files, self._folder
        )

    def _place(self, specs: Iterable[Variable], lives_within_step: bool = False) -> None:
        """Gives variables their places in files: one behind the other, in the order given."""
        number, offset = next(self._numbers), 0
        for spec in specs:
            record = Record(spec, number, offset, lives_within_step=lives_within_step)
            if offset and offset + record.size > FILE_BYTES:
                record.number, record.home = number, offset = next(self._numbers), 0
            offset += record.size
            self._records[spec.name] = record

    @property
    def specs(self) -> Mapping[str, Variable]:
        """What each variable is, by name."""
        return self._specs

    def reserve(self, specs: Iterable[Variable]) -> None:
        """See Store.reserve."""
        self._place((s for s in specs if s.name not in self._records), lives_within_step=True)

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire."""
        self._transfers.raise_failure()
        records = [self._records[name] for name in names]
        if not fresh:
            require_values(self, names)
        self._itinerary.advance(names)
        for record in records:
            record.users += 1
        try:
            self._bring(records, fresh)
            self._read_ahead()
            return [self._ready(record) for record in records]
        except BaseException:
            for record in records:
                record.users -= 1
            raise

    def release(self, names: Iterable[str], dirty: Collection[str] = ()) -> None:
        """See Store.release."""
        for name in names:
            record = self._records[name]
            if not record.users:
                raise RuntimeError(f"store: {name} is released, but it was not acquired.")
            record.users -= 1
            if name in dirty:
                record.is_dirty, record.is_blank, record.has_value = True, False, True
                self._version += not record.lives_within_step
            elif record.is_blank and not record.users:
                self._evict([record])
            elif record.lives_within_step and not record.users:
                record.is_dirty = record.has_value = False  # it was read, which ends its life

    def follow(self, order: Sequence[Sequence[str]]) -> None:
        """See Store.follow.

        Raises:
            CapacityError: a group is larger than the memory for variables.
        """
        if order is self._itinerary.order:
            return
        for names in order:
            self._require_room([self._records[name] for name in names])
        self._itinerary = Itinerary(order)
        self._ahead = 0
        self._window = max((self._size_of(names) for names in order), default=0)
        # Room for what is being written, so that what is read needs not wait for it.
        room = self._buffers.most_bytes
        self._most_taken = room - self._window if room >= 3 * self._window else room

    def holds(self, name: str) -> bool:
        """Whether the variable has a value."""
        return self._records[name].has_value

    @property
    def version(self) -> int:
        """See Store.version."""
        return self._version

    @property
    def resident_bytes(self) -> int:
        """Bytes of the buffers."""
        return self._buffers.bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of the buffers once every variable has a value."""
        return min(self._buffers.most_bytes, sum(r.size for r in self._records.values()))

    @property
    def traffic(self) -> Traffic:
        """See Store.traffic."""
        return self._transfers.traffic

    def adopt(self, name: str, entry: Entry) -> bool:
        """See Store.adopt."""
        record = self._records[name]
        type = record.spec.type
        fits = entry.is_whole and entry.dtype == type.dtype and entry.shape == type.shape
        if record.users or not fits or entry.offset % ALIGNMENT_BYTES:
            return False
        file = self._adopted_file(entry.path)
        if file is None:
            return False
        self._transfers.finish([record])
        if record.is_here:
            record.is_dirty = False
            self._evict([record])
        self._move(record, file, entry.offset)
        record.checksum, record.is_unchecked, record.has_value = entry.checksum, True, True
        self._version += 1
        return True

    def settle(self) -> Mapping[str, Entry]:
        """See Store.settle."""
        dirty = [r for r in self._records.values() if r.is_dirty and not r.lives_within_step]
        for record in dirty:
            self._ready(record)
        self._write(dirty, keep=True)
        self._transfers.finish(self._records.values())
        found = {}
        for name in self._specs:
            record = self._records[name]
            if record.has_value:
                assert record.file is not None and record.checksum is not None
                type = record.spec.type
                place = str(record.file.path), record.offset, type.most_bytes
                found[name] = Entry(type.dtype, type.static_shape, *place, record.checksum)
        for file in {r.file for r in self._records.values() if r.file and not r.lives_within_step}:
            if not file.is_frozen:
                file.sync()
                file.is_frozen = True
        return found

    def close(self) -> None:
        """See Store.close."""
        self._finalizer()

    # Memory.

    def _bring(self, records: Sequence[Record], fresh: bool) -> None:
        """Sees to it that records are here or on their way."""
        missing = [record for record in dict.fromkeys(records) if not record.is_here]
        if not missing:
            return
        need = sum(record.size for record in missing)
        if not self._make_room(need, -1):  # what is read ahead, and room for writing, have to wait
            self._require_room([r for r in self._records.values() if r.users])
            self._evict([r for r in self._records.values() if r.is_here and not r.users])
        self._taken += need
        if not fresh:
            self._transfers.read(missing)
            return
        for record in missing:
            record.buffer, record.is_blank = self._buffers.take(record.size), True

    def _require_room(self, records: Sequence[Record]) -> None:
        need = sum(record.size for record in dict.fromkeys(records))
        if need <= self._buffers.most_bytes:
            return
        largest = max(records, key=lambda record: record.size)
        raise CapacityError(
            f"memoryx_ram_gb: must hold the variables that are used together, {need / 1e9:.3g} GB "
            f"(the largest is {largest.spec.name}). Received: "
            f"{self._buffers.most_bytes / 1e9:.3g} GB. Raise memoryx_ram_gb."
        )

    def _make_room(self, need: int, beyond: float) -> bool:
        """Lets records go that are needed later than a position; whether there is room then."""
        lack = self._taken + need - self._most_taken
        if lack <= 0:
            return True
        next_use = self._itinerary.next_use
        idle = [
            (next_use(name), record)
            for name, record in self._records.items()
            if record.is_here and not record.users
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
            self._ready(record)
            self._taken -= record.size
            if record.has_value:
                self._ahead = min(self._ahead, int(min(self._use_of(record), self._ahead)))
        self._write([record for record in records if record.is_dirty], keep=False)
        for record in records:
            if record.buffer is not None:
                self._buffers.give(record.buffer)
                record.buffer = None

    def _size_of(self, names: Sequence[str]) -> int:
        return sum(self._records[name].size for name in dict.fromkeys(names))

    def _use_of(self, record: Record) -> float:
        return self._itinerary.next_use(record.spec.name)

    def _read_ahead(self) -> None:
        """Starts to read what the next groups need: one, and more while they are small together.

        To read further ahead would drop what the next step needs: the more of the memory holds what
        comes soon, the less of it keeps what comes late.
        """
        at = self._itinerary
        self._ahead = max(self._ahead, at.position)
        before = sum(self._size_of(at.group(p)) for p in range(at.position, self._ahead))
        while self._ahead < at.position + len(at.order):
            size = self._size_of(at.group(self._ahead))
            if before and before + size > self._window:
                return
            before += size
            records = [self._records[name] for name in dict.fromkeys(at.group(self._ahead))]
            missing = [r for r in records if r.has_value and not r.is_here]
            need = sum(record.size for record in missing)
            if need and not self._make_room(need, self._ahead):
                return
            self._taken += need
            self._transfers.read(missing)
            self._ahead += 1

    def _ready(self, record: Record) -> Array:
        """The record's array, once it is here."""
        if record.reading is not None:
            started = time.perf_counter()
            record.buffer = record.reading.result()
            record.reading = None
            record.is_unchecked = False
            self.traffic.stalled_s += time.perf_counter() - started
        return record.array()

    # Files.

    def _write(self, records: Sequence[Record], keep: bool) -> None:
        """Starts to write records to their places; their buffers stay where `keep` says so."""
        for record in records:
            current = self._current.get(record.number)
            if current is None or current.is_frozen:
                current = RecordFile(self._new_path())
                self._files.append(current)
                self._current[record.number] = current
            if record.file is not current:
                self._move(record, current, record.home)
                record.needs_room = True
            record.is_dirty = False
        self._transfers.write(records, keep)

    def _move(self, record: Record, file: RecordFile, offset: int) -> None:
        """Says that the record's content lies elsewhere from now on."""
        before = record.file
        record.file, record.offset = file, offset
        file.records += 1
        if before is not None:
            before.records -= 1
            if not before.records and before is not self._current.get(record.number):
                self._files.remove(before)
                self._adopted = {key: f for key, f in self._adopted.items() if f is not before}
                before.close()
                before.path.unlink()

    def _adopted_file(self, path: str) -> Optional[RecordFile]:
        """The file of a checkpoint, which stays here though the checkpoint be deleted."""
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        if key not in self._adopted:
            link = self._new_path()
            self._adopted[key] = None
            with contextlib.suppress(OSError):  # another file system, or one without links
                os.link(path, link)
                file = self._adopted[key] = RecordFile(link, origin=path)
                self._files.append(file)
        return self._adopted[key]

    def _new_path(self) -> Path:
        return self._folder.path / f"{next(self._names):06d}.bin"


def _close(
    transfers: Transfers, buffers: Buffers, files: list[RecordFile], folder: StoreFolder
) -> None:
    buffers.close()  # whoever waits for one gets an error
    transfers.close()
    for file in files:
        file.close()
    files.clear()
    folder.remove()
