"""A file of variables, read and written with direct I/O if the file system supports it.

The page cache would hold a second copy, and evict what others need.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, cast

from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES, padded
from cerebras_tf.memoryx.store import FileRegion

# A call moves less than 2 GiB (man 2 readv); this much at a time keeps the queue of the disk full.
_MAX_BYTES = 1 << 30
_MAX_BUFFERS = 1024  # IOV_MAX of Linux
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux has it


class RecordFile:
    """An open file. Offsets and sizes are multiples of ALIGNMENT_BYTES.

    Attributes:
        path: its name.
        source: the region of another file that it is, or is a link to; None for a new file.
        is_own: whether it is removed when no variable is stored in it.
        is_frozen: whether a checkpoint shares its contents, which must not change any more.
        records: number of variables whose content is here.
        written: offsets that were written.
    """

    def __init__(self, path: Path, source: Optional[FileRegion] = None) -> None:
        """Opens a file.

        Args:
            path: its name.
            source: what it is a link to, and is only read; None makes a new file.

        Raises:
            OSError: it cannot be opened.
        """
        self.path, self.source = path, source
        self.is_own = source is None or str(path) != source.path
        self.is_frozen = source is not None
        self.records = 0
        self.written: set[int] = set()
        self._descriptor, self._is_direct = _open(path, source is None)
        self._growing = threading.Lock()

    def allocate(self, offset: int, size: int) -> None:
        """Allocates disk space filled with zeros; raises OSError if there is none."""
        try:
            os.posix_fallocate(self._descriptor, offset, size)
        except OSError as error:  # some file systems cannot; they allocate when written
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            with self._growing:  # else one thread could truncate what another has extended
                if os.fstat(self._descriptor).st_size < offset + size:
                    os.ftruncate(self._descriptor, offset + size)

    def read(self, offset: int, buffers: Sequence[Array]) -> int:
        """Fills buffers from consecutive bytes; returns the number of bytes read."""
        return self._move(os.preadv, offset, buffers)

    def write(self, offset: int, buffers: Sequence[Array]) -> None:
        """Writes buffers to consecutive bytes; raises OSError if the disk is full."""
        moved = self._move(os.pwritev, offset, buffers)
        if moved < sum(buffer.nbytes for buffer in buffers):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _move(self, move: Callable[..., int], offset: int, buffers: Sequence[Array]) -> int:
        total = 0
        left = [memoryview(buffer) for buffer in cast(Sequence[Any], buffers)]
        while left:
            part: list[memoryview] = []
            size = 0
            for view in left[:_MAX_BUFFERS]:
                part.append(view[: _MAX_BYTES - size])
                size += len(part[-1])
                if size >= _MAX_BYTES:
                    break
            moved = move(self._descriptor, part, offset + total)
            total += moved
            if not moved or (moved < size and moved % ALIGNMENT_BYTES):
                break  # the end of the file
            while left and moved >= len(left[0]):
                moved -= len(left.pop(0))
            if moved:
                left[0] = left[0][moved:]
        if not self._is_direct:
            os.posix_fadvise(self._descriptor, offset, total, os.POSIX_FADV_DONTNEED)
        return total

    def sync(self) -> None:
        """Waits until the content is on the disk (fsync)."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Closes it."""
        os.close(self._descriptor)


def _open(path: Path, new: bool) -> tuple[int, bool]:
    """(descriptor, whether it uses direct I/O)."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if new else os.O_RDONLY
    try:
        return os.open(path, flags | os.O_CLOEXEC | _DIRECT, 0o666), bool(_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, (flags & ~os.O_EXCL) | os.O_CLOEXEC, 0o666), False


@dataclass(eq=False)
class Record:
    """The state of a variable: its place in files and its buffer.

    Attributes:
        spec: the variable.
        group: number of the variables that share a file.
        new_offset: its offset in files that the store writes.
        lives_within_step: whether it is in no checkpoint, and is dropped after it is read.
        file: the file with its content; None without one.
        offset: in that file, of the first byte that is read.
        skipped: bytes read before its first byte; not zero only in files of others.
        is_unallocated: whether its disk space is not allocated yet.
        checksum: CRC-32C of its content in the file.
        is_unchecked: whether its content was not compared with the checksum yet.
        is_finite: whether its content has no NaN or infinity, as far as it was checked.
        buffer: its content in memory; None if it is not in memory.
        reading: future of the buffer while it is read.
        writing: future that is done after it was written.
        use_count: number of acquisitions that are not released.
        has_value: whether it has a value.
        is_dirty: whether the buffer is newer than the file.
        is_blank: whether the buffer was never written.
    """

    spec: Variable
    group: int
    new_offset: int
    lives_within_step: bool = False
    file: Optional[RecordFile] = None
    offset: int = 0
    skipped: int = 0
    is_unallocated: bool = False
    checksum: Optional[int] = None
    is_unchecked: bool = False
    is_finite: bool = True
    buffer: Optional[Array] = None
    reading: Optional[Future[Array]] = None
    writing: Optional[Future[None]] = None
    use_count: int = 0
    has_value: bool = False
    is_dirty: bool = False
    is_blank: bool = False

    @property
    def size(self) -> int:
        """Bytes that it takes in memory and in files."""
        return padded(self.skipped + self.spec.type.max_bytes)

    def content_of(self, buffer: Array) -> Array:
        """Its bytes within a buffer."""
        return buffer[self.skipped : self.skipped + self.spec.type.max_bytes]

    @property
    def in_memory(self) -> bool:
        """Whether it is in memory or being read."""
        return self.buffer is not None or self.reading is not None
