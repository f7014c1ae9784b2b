"""What moves the records of a store: the contract, and a disk with threads that do so."""

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

# What must fit on it, in messages.
ON_DISK = "weights and optimizer state, and of gradients and activations that wait,"


class Disk(Protocol):
    """Moves records, and has the memory that they are moved to."""

    @property
    def folder(self) -> Optional[str]:
        """Where the files are or would be, or a folder of that name will be made; None: nowhere."""

    @property
    def max_bytes(self) -> int:
        """Bytes of memory for records, those in transit included."""

    @property
    def bytes(self) -> int:
        """Bytes of memory taken now."""

    @property
    def io_stats(self) -> IoStats:
        """What was moved so far."""

    def require_free(self, size: int) -> None:
        """Raises StoreError where so many bytes more do not fit on it."""

    def take(self, size: int) -> Array:
        """A buffer, not filled."""

    def give(self, buffer: Array) -> None:
        """Takes a buffer back."""

    def array(self, record: Record) -> Array:
        """The array of a record that has a buffer."""

    def read(self, records: Sequence[Record]) -> None:
        """Starts to read records; each gets a `reading`."""

    def write(self, records: Sequence[Record], keep: bool) -> None:
        """Starts to write records, which are dirty no more; without `keep` they lose the buffers.

        With it their contents must not change until they are written.
        """

    def finish(self, records: Iterable[Record]) -> None:
        """Waits until records are written; raises StoreError where something could not be."""

    def raise_failure(self) -> None:
        """Raises StoreError where something could not be written: nothing may go on then."""

    def link_source(self, record: Record, region: FileRegion) -> bool:
        """Links a record to a region of another file; returns whether it can."""

    def linkable_regions(self, records: Iterable[Record]) -> dict[str, FileRegion]:
        """Where written records lie; nothing is changed there from now on."""

    def close(self) -> None:
        """Gives everything back."""


class FileDisk:
    """Files in a folder of their own.

    The folder goes with the last of them, or when another is made where the process was killed:
    what must last is in checkpoints, which share contents by links.

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
        self._current: dict[int, RecordFile] = {}  # what is written, by number
        # Files of checkpoints by device and number; None where they cannot be linked.
        self._linked: dict[tuple[int, int], Optional[RecordFile]] = {}
        self._buffers = Buffers(max_bytes)
        self._transfers = Transfers(self._buffers)
        # Holds no reference to this object, so that one that is forgotten is closed as well.
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
        content = record.buffer[: type.max_bytes].view(type.storage_dtype)
        return content.reshape(type.static_shape)

    def read(self, records: Sequence[Record]) -> None:
        self._transfers.read(records)

    def write(self, records: Sequence[Record], keep: bool) -> None:
        """See Disk.write. What lies in a file that must not change is written to a new one."""
        for record in records:
            self._open(record)
        for record in records:
            current = self._current[record.number]
            if record.file is not current:
                self._move(record, current, record.home)
                # Another content may lie there, from before it was adopted from elsewhere.
                record.is_unallocated = record.home not in current.written
                current.written.add(record.home)
            record.is_dirty = False
        self._transfers.write(records, keep)

    def _open(self, record: Record) -> None:
        """Sees to it that there is a file that the record may be written to."""
        current = self._current.get(record.number)
        if current is None or current.is_frozen:
            path = self._new_path()
            try:
                current = RecordFile(path)
            except OSError as error:
                raise StoreError(
                    f"memoryx_dir: {path} must be made, for variable {record.spec.name}. Received: "
                    f"{error.strerror}. Check the disk; {UNTOUCHED}."
                ) from error
            self._files.append(current)
            self._current[record.number] = current

    def finish(self, records: Iterable[Record]) -> None:
        self._transfers.finish(records)

    def raise_failure(self) -> None:
        self._transfers.raise_failure()

    def link_source(self, record: Record, region: FileRegion) -> bool:
        """See Disk.link_source; what does not lie at a multiple of ALIGNMENT_BYTES cannot be."""
        if region.offset % ALIGNMENT_BYTES:
            return False
        file = self._linked_file(region)
        if file is None:
            return False
        self._move(record, file, region.offset)
        return True

    def linkable_regions(self, records: Iterable[Record]) -> dict[str, FileRegion]:
        found = {}
        for record in records:
            if record.has_value:
                assert record.file is not None and record.checksum is not None
                type = record.spec.type
                place = str(record.file.path), record.offset, type.max_bytes
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
        """Says that the record's content lies elsewhere from now on."""
        before = record.file
        record.file, record.offset = file, offset
        file.records += 1
        if before is not None:
            before.records -= 1
            if not before.records and before is not self._current.get(record.number):
                self._files.remove(before)
                self._linked = {key: f for key, f in self._linked.items() if f is not before}
                before.close()
                before.path.unlink(missing_ok=True)  # where it was deleted, saving reports it

    def _linked_file(self, region: FileRegion) -> Optional[RecordFile]:
        """The file of a checkpoint, which is kept by a link where the checkpoint is deleted."""
        try:
            found = os.stat(region.path)
        except OSError:  # reading it reports what is wrong
            return None
        key = found.st_dev, found.st_ino
        if key not in self._linked:
            link = self._new_path()
            self._linked[key] = None
            with contextlib.suppress(OSError):  # another file system, or one without links
                os.link(region.path, link)
                file = self._linked[key] = RecordFile(link, region)
                self._files.append(file)
        return self._linked[key]

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


class PlannedDisk:
    """Moves nothing and counts it: what a disk with so much memory would do.

    Args:
        max_bytes: bytes of main memory for records.
        folder: that of the disk it stands for; nothing is made there.

    Attributes:
        max_bytes: as given.
        folder: as given.
        bytes: bytes of memory that would be taken now.
        traffic: what would have been moved so far.
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
