"""A disk that only counts, for plans: the store on it decides what it would on a real one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Optional

import numpy as np

from cerebras_tf.bundle.index import Entry
from cerebras_tf.ir import Array
from cerebras_tf.memoryx.record import Record
from cerebras_tf.memoryx.store import Traffic


class PlannedDisk:
    """Moves nothing and counts it: what a disk with so much memory would do.

    Args:
        most_bytes: bytes of main memory for records.
        folder: that of the disk it stands for; nothing is made there.

    Attributes:
        most_bytes: as given.
        folder: as given.
        bytes: bytes of memory that would be taken now.
        traffic: what would have been moved so far.
    """

    def __init__(self, most_bytes: int, folder: Optional[str] = None) -> None:
        self.most_bytes = most_bytes
        self.folder = folder
        self.bytes = 0
        self.traffic = Traffic()

    def require_free(self, size: int) -> None:
        """See Disk.require_free; there is as much as is needed."""

    def take(self, size: int) -> Array:
        """See Disk.take; an array that takes no memory."""
        self.bytes += size
        return np.broadcast_to(np.zeros((), np.uint8), (size,))

    def give(self, buffer: Array) -> None:
        """See Disk.give."""
        self.bytes -= buffer.nbytes

    def array(self, record: Record) -> Array:
        """See Disk.array; all elements are zero, in one element's memory."""
        type = record.spec.type
        return np.broadcast_to(np.zeros((), type.storage_dtype), type.static_shape)

    def read(self, records: Sequence[Record]) -> None:
        """See Disk.read."""
        for record in records:
            record.reading = Future()
            record.reading.set_result(self.take(record.size))
            self.traffic.bytes_read += record.size

    def write(self, records: Sequence[Record], keep: bool) -> None:
        """See Disk.write."""
        for record in records:
            self.traffic.bytes_written += record.size
            record.is_dirty = False
            if not keep and record.buffer is not None:
                self.give(record.buffer)
                record.buffer = None

    def finish(self, records: Iterable[Record]) -> None:
        """See Disk.finish."""

    def raise_failure(self) -> None:
        """See Disk.raise_failure."""

    def adopt(self, record: Record, entry: Entry) -> bool:
        """See Disk.adopt."""
        return True

    def settle(self, records: Iterable[Record]) -> dict[str, Entry]:
        """See Disk.settle; there are no places."""
        return {}

    def close(self) -> None:
        """See Disk.close."""
