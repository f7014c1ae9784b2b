"""Speed and free space of the disk of a folder, which need not exist yet."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from cerebras_tf.errors import StoreError
from cerebras_tf.memoryx.buffers import Buffers
from cerebras_tf.memoryx.record_file import RecordFile

_PROBE_BYTES = 1 << 25
_given_back: ContextVar[int] = ContextVar("bytes that the caller gives back", default=0)


def free_bytes(folder: str) -> int:
    """Bytes that may still be written to the file system of a folder."""
    return shutil.disk_usage(_there(folder)).free


@contextmanager
def giving_back(size: int) -> Iterator[None]:
    """Within: `require_free` counts so many bytes as free.

    For a checkpoint that is deleted once training has linked it: what the store writes then
    replaces what it read there.
    """
    token = _given_back.set(size)
    try:
        yield
    finally:
        _given_back.reset(token)


def require_free(folder: str, size: int, what: str) -> None:
    """Raises StoreError where some bytes do not fit on the disk of a folder; `what` names them."""
    free = free_bytes(folder) + _given_back.get()
    if size > free:
        raise StoreError(
            f"memoryx_dir: {size / 1e9:.3g} GB of {what} must fit on it. Received: "
            f"{free / 1e9:.3g} GB free on the disk of {folder}. Free disk space, or use a folder "
            "on another disk."
        )


def measured_disk_speeds(folder: str) -> tuple[float, float]:
    """(bytes read a second, bytes written a second), measured with a file that does not stay.

    Raises:
        OSError: the file cannot be made or written.
    """
    return _measured(str(_there(folder)))


def _there(folder: str) -> Path:
    """The folder, or the next one above it that exists."""
    path = Path(os.path.abspath(folder))
    return next(found for found in (path, *path.parents) if found.is_dir())


@functools.cache
def _measured(folder: str) -> tuple[float, float]:
    made = Path(tempfile.mkdtemp(prefix="speed-", dir=folder))
    try:
        file = RecordFile(made / "probe.bin")
    finally:  # it is removed, also where this process is killed while it measures
        shutil.rmtree(made)
    buffer = Buffers(_PROBE_BYTES).take(_PROBE_BYTES)
    try:
        buffer[:] = 1  # pages that were never touched are faster to write
        file.allocate(0, buffer.nbytes)
        seconds = []
        for move in (file.write, file.read):
            started = time.perf_counter()
            move(0, [buffer])
            seconds.append(max(time.perf_counter() - started, 1e-9))
    finally:
        file.close()
    return buffer.nbytes / seconds[1], buffer.nbytes / seconds[0]
