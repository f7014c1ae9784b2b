"""Moves the records of a store: the protocol, a disk with threads, and a planned disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Optional, Protocol

import numpy as np

from cerebras_tf.errors import StoreError
from cerebras_tf.ir import Array
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES, Buffers
from cerebras_tf.memoryx.disk_speed import require_free
from cerebras_tf.memoryx.process_folder import StoreFolder
from cerebras_tf.memoryx.record_file import Record, RecordFile
from cerebras_tf.memoryx.store import FileRegion, IoStats
from cerebras_tf.memoryx.transfers import UNTOUCHED, Transfers

# What must fit on the disk, for errors.
ON_DISK = "weights and optimizer state, and of gradients and activations that wait,"


class Disk(Protocol):
    """Moves records between files and memory, and owns that memory."""

    @property
    def folder(self) -> Optional[str]:
        """The folder of the files, which may not exist yet; None without files."""

    @property
    def max_bytes(self) -> int:
        """Bytes of memory for records, those in transit included."""

    @property
    def bytes(self) -> int:
        """Bytes of memory taken now."""

    @property
    def io_stats(self) -> IoStats:
        """Bytes moved so far."""

    def require_free(self, size: int) -> None:
        """Raises StoreError if this many more bytes do not fit on the disk."""

    def take(self, size: int) -> Array:
        """A buffer, not filled."""

    def give(self, buffer: Array) -> None:
        """Returns a buffer to the disk."""

    def array(self, record: Record) -> Array:
        """The array of a record that has a buffer."""

    def read(self, records: Sequence[Record]) -> None:
        """Starts to read records; each gets a `reading`."""

    def write(self, records: Sequence[Record], keep: bool) -> None:
        """Starts to write records, and marks them as clean.

        With `keep` they keep their buffers, which must not change until they are written.
        """

    def finish(self, records: Iterable[Record]) -> None:
        """Waits until records are written; raises StoreError if writing failed."""

    def raise_failure(self) -> None:
        """Raises StoreError if writing failed; training must then stop."""

    def link_source(self, record: Record, region: FileRegion) -> bool:
        """Links a record to a region of another file; returns whether this is possible."""

    def linkable_regions(self, records: Iterable[Record]) -> dict[str, FileRegion]:
        """Regions of written records; these do not change any more."""

    def close(self) -> None:
        """Frees all memory and files."""


class FileDisk:
    """Files in a folder of their own.

    The folder is removed on close, or by the next process if this one was killed: checkpoints have
    links of their own to the contents.

    Args:
        folder: where the folder is made.
        max_bytes: bytes of main memory for records.

    Attributes:
        folder: as given.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder = folder
        self._folder = StoreFolder(Path(folder))
        self._names = itertools.count()
        self._files: list[RecordFile] = []
        self._current: dict[int, RecordFile] = {}  # open for writing, by group
        # Files of checkpoints by device and number; None where they cannot be linked.
        self._linked: dict[tuple[int, int], Optional[RecordFile]] = {}
        self._buffers = Buffers(max_bytes)
        self._transfers = Transfers(self._buffers)
        # Without a reference to this object, so that garbage collection closes it.
        self._finalizer = weakref.finalize(
            self, _close, self._transfers, self._buffers, self._files, self._folder
        )

    @property
    def max_bytes(self) -> int:
        return self._buffers.max_bytes

    @property
    def bytes(self) -> int:
        return self._buffers.bytes

    @property
    def io_stats(self) -> IoStats:
        return self._transfers.io_stats

    def require_free(self, size: int) -> None:
        require_free(self.folder, size, ON_DISK)

    def take(self, size: int) -> Array:
        """See Disk.take; waits for memory."""
        return self._buffers.take(size)

    def give(self, buffer: Array) -> None:
        self._buffers.give(buffer)

    def array(self, record: Record) -> Array:
        assert record.buffer is not None
        type = record.spec.type
        content = record.content_of(record.buffer).view(type.storage_dtype)
        return content.reshape(type.static_shape)

    def read(self, records: Sequence[Record]) -> None:
        self._transfers.read(records)

    def write(self, records: Sequence[Record], keep: bool) -> None:
        """See Disk.write. What lies in a file that must not change is written to a new one."""
        for record in records:
            self._open(record)
        for record in records:
            current = self._current[record.group]
            if record.file is not current:
                self._move(record, current, record.new_offset)
                # The place may hold older content, from before the record was linked.
                record.is_unallocated = record.new_offset not in current.written
                current.written.add(record.new_offset)
            record.is_dirty = False
        self._transfers.write(records, keep)

    def _open(self, record: Record) -> None:
        """Opens a file for the record, unless there is one that may be written to."""
        current = self._current.get(record.group)
        if current is None or current.is_frozen:
            path = self._new_path()
            try:
                current = RecordFile(path)
            except OSError as error:
                raise StoreError(
                    f"memoryx_dir: {path} must be created, for variable {record.spec.name}. "
                    f"Received: {error.strerror}. Check the disk; {UNTOUCHED}."
                ) from error
            self._files.append(current)
            self._current[record.group] = current

    def finish(self, records: Iterable[Record]) -> None:
        self._transfers.finish(records)

    def raise_failure(self) -> None:
        self._transfers.raise_failure()

    def link_source(self, record: Record, region: FileRegion) -> bool:
        """See Disk.link_source; a file without checksums is read where it is."""
        if region.checksum is not None and region.offset % ALIGNMENT_BYTES:
            return False
        file = self._linked_file(region)
        if file is None:
            return False
        self._move(record, file, region.offset - region.offset % ALIGNMENT_BYTES)
        return True

    def linkable_regions(self, records: Iterable[Record]) -> dict[str, FileRegion]:
        found = {}
        for record in records:
            if record.has_value:
                assert record.file is not None
                type = record.spec.type
                place = str(record.file.path), record.offset + record.skipped, type.max_bytes
                found[record.spec.name] = FileRegion(
                    type.dtype, type.static_shape, *place, record.checksum
                )
                if not record.file.is_frozen:
                    record.file.sync()
                    record.file.is_frozen = True
        return found

    def close(self) -> None:
        self._finalizer()

    def _move(self, record: Record, file: RecordFile, offset: int) -> None:
        """Sets where the record's content is stored."""
        before = record.file
        record.file, record.offset = file, offset
        file.records += 1
        if before is not None:
            before.records -= 1
            if not before.records and before is not self._current.get(record.group):
                self._files.remove(before)
                self._linked = {key: f for key, f in self._linked.items() if f is not before}
                before.close()
                if before.is_own:
                    before.path.unlink(missing_ok=True)  # if it was deleted, saving raises

    def _linked_file(self, region: FileRegion) -> Optional[RecordFile]:
        """The file of a checkpoint; a link keeps its content if the checkpoint is deleted."""
        try:
            found = os.stat(region.path)
        except OSError:  # reading it raises
            return None
        key = found.st_dev, found.st_ino
        if key not in self._linked:
            is_checked = region.checksum is not None
            link = self._new_path() if is_checked else Path(region.path)
            self._linked[key] = None
            with contextlib.suppress(OSError):  # another file system, or one without links
                if is_checked:
                    os.link(region.path, link)
                file = self._linked[key] = RecordFile(link, region)
                self._files.append(file)
        return self._linked[key]

    def _new_path(self) -> Path:
        return self._folder.path / f"{next(self._names):06d}.bin"


def _close(
    transfers: Transfers, buffers: Buffers, files: list[RecordFile], folder: StoreFolder
) -> None:
    buffers.close()  # raises in threads that wait for a buffer
    transfers.close()
    for file in files:
        file.close()
    files.clear()
    folder.remove()


class PlannedDisk:
    """Counts what a disk with this much memory would move, and moves nothing.

    Args:
        max_bytes: bytes of main memory for records.
        folder: that of the planned disk; nothing is written.

    Attributes:
        max_bytes: as given.
        folder: as given.
        bytes: bytes of memory that would be taken now.
        io_stats: what would have been moved so far.
    """

    def __init__(self, max_bytes: int, folder: Optional[str] = None) -> None:
        self.max_bytes = max_bytes
        self.folder = folder
        self.bytes = 0
        self.io_stats = IoStats()

    def require_free(self, size: int) -> None:
        """See Disk.require_free; there is as much as is needed."""

    def take(self, size: int) -> Array:
        """See Disk.take; an array that takes no memory."""
        self.bytes += size
        return np.broadcast_to(np.zeros((), np.uint8), (size,))

    def give(self, buffer: Array) -> None:
        self.bytes -= buffer.nbytes

    def array(self, record: Record) -> Array:
        """See Disk.array; all elements are zero, in one element's memory."""
        type = record.spec.type
        return np.broadcast_to(np.zeros((), type.storage_dtype), type.static_shape)

    def read(self, records: Sequence[Record]) -> None:
        for record in records:
            record.reading = Future()
            record.reading.set_result(self.take(record.size))
            self.io_stats.bytes_read += record.size

    def write(self, records: Sequence[Record], keep: bool) -> None:
        for record in records:
            self.io_stats.bytes_written += record.size
            record.is_dirty = False
            if not keep and record.buffer is not None:
                self.give(record.buffer)
                record.buffer = None

    def finish(self, records: Iterable[Record]) -> None:
        pass

    def raise_failure(self) -> None:
        pass

    def link_source(self, record: Record, region: FileRegion) -> bool:
        return True

    def linkable_regions(self, records: Iterable[Record]) -> dict[str, FileRegion]:
        """See Disk.linkable_regions; there are no places."""
        return {}

    def close(self) -> None:
        pass
