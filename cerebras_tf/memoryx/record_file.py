"""A file of variables, read and written past the page cache where the file system allows it.

The page cache would hold a second copy of what is read once, and push out what others need.
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
    """An open file; contents lie at multiples of ALIGNMENT_BYTES, which buffers are of too.

    Attributes:
        path: its name.
        source: the region of another file that it is a link to; None for a new file.
        is_frozen: its contents must not change any more: a checkpoint shares them.
        records: variables whose content lies here.
        written: offsets at which something was written.
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
        self.is_frozen = source is not None
        self.records = 0
        self.written: set[int] = set()
        self._descriptor, self._is_direct = _open(path, source is None)
        self._growing = threading.Lock()

    def allocate(self, offset: int, size: int) -> None:
        """Allocates disk space, which reads zero; raises OSError where there is none."""
        try:
            os.posix_fallocate(self._descriptor, offset, size)
        except OSError as error:  # some file systems cannot; there it is taken when written
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            with self._growing:  # threads that both find it short: one would cut off the other's
                if os.fstat(self._descriptor).st_size < offset + size:
                    os.ftruncate(self._descriptor, offset + size)

    def read(self, offset: int, buffers: Sequence[Array]) -> int:
        """Fills buffers from consecutive bytes; returns how many there were before the end."""
        return self._move(os.preadv, offset, buffers)

    def write(self, offset: int, buffers: Sequence[Array]) -> None:
        """Writes buffers to consecutive bytes; raises OSError where not all of them could be."""
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
        """Waits until what was written is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Closes it."""
        os.close(self._descriptor)


def _open(path: Path, new: bool) -> tuple[int, bool]:
    """(descriptor, whether it goes past the page cache)."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if new else os.O_RDONLY
    try:
        return os.open(path, flags | os.O_CLOEXEC | _DIRECT, 0o666), bool(_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, (flags & ~os.O_EXCL) | os.O_CLOEXEC, 0o666), False


@dataclass(eq=False)
class Record:
    """A variable, where its content lies, and what goes on with it.

    Attributes:
        spec: what it is.
        number: which variables it shares files with.
        home: bytes from the start of these files.
        lives_within_step: whether it is in no checkpoint, and ends when it is read.
        file: where its content lies; None where it has none there.
        offset: of its first byte there.
        is_unallocated: nothing was written there yet.
        checksum: CRC-32C of its content there.
        is_unchecked: its content was not compared with the checksum since this process started.
        is_finite: its content there holds neither NaN nor infinity, as far as it was looked at.
        buffer: its content in memory; None where it is not here.
        reading: gives the buffer once it was read.
        writing: done once it was written.
        users: how many hold it.
        has_value: whether it has a value.
        is_dirty: the buffer is newer than the file.
        is_blank: the buffer was never filled.
    """

    spec: Variable
    number: int
    home: int
    lives_within_step: bool = False
    file: Optional[RecordFile] = None
    offset: int = 0
    is_unallocated: bool = False
    checksum: Optional[int] = None
    is_unchecked: bool = False
    is_finite: bool = True
    buffer: Optional[Array] = None
    reading: Optional[Future[Array]] = None
    writing: Optional[Future[None]] = None
    users: int = 0
    has_value: bool = False
    is_dirty: bool = False
    is_blank: bool = False

    @property
    def size(self) -> int:
        """Bytes that it takes in memory and in files."""
        return padded(self.spec.type.max_bytes)

    @property
    def is_here(self) -> bool:
        """Whether it is in memory, or on its way there."""
        return self.buffer is not None or self.reading is not None
