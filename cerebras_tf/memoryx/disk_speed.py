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
from cerebras_tf.quantities import in_bytes

_PROBE_BYTES = 1 << 25
_freed_by_caller: ContextVar[int] = ContextVar("bytes that the caller will free", default=0)


def free_bytes(folder: str) -> int:
    """Bytes that may still be written to the file system of a folder."""
    return shutil.disk_usage(_existing_parent(folder)).free


@contextmanager
def counting_as_free(size: int) -> Iterator[None]:
    """Within: `require_free` counts this many bytes as free.

    It is used for a checkpoint that is deleted after training has linked to it.
    """
    token = _freed_by_caller.set(size)
    try:
        yield
    finally:
        _freed_by_caller.reset(token)


def require_free(folder: str, size: int, what: str, key: str = "memoryx_dir") -> None:
    """Raises StoreError where some bytes do not fit on the disk of a folder.

    Args:
        what: names the bytes.
        key: option that sets the folder.
    """
    free = free_bytes(folder) + _freed_by_caller.get()
    if size > free:
        raise StoreError(
            f"{key}: {in_bytes(size)} of {what} must fit on it. Received: {in_bytes(free)} free on "
            f"the disk of {folder}. Free disk space, or use a folder on another disk."
        )


def measured_disk_speeds(folder: str) -> tuple[float, float]:
    """(bytes read per second, bytes written per second), measured with a temporary file.

    Raises:
        OSError: the file cannot be made or written.
    """
    return _measured(str(_existing_parent(folder)))


def _existing_parent(folder: str) -> Path:
    """The folder, or its nearest parent that exists."""
    path = Path(os.path.abspath(folder))
    return next(found for found in (path, *path.parents) if found.is_dir())


@functools.cache
def _measured(folder: str) -> tuple[float, float]:
    made = Path(tempfile.mkdtemp(prefix="speed-", dir=folder))
    try:
        file = RecordFile(made / "probe.bin")
    finally:  # the open file disappears if this process is killed
        shutil.rmtree(made)
    buffer = Buffers(_PROBE_BYTES).take(_PROBE_BYTES)
    try:
        buffer[:] = 1  # untouched pages are faster to write
        file.allocate(0, buffer.nbytes)
        seconds = []
        for move in (file.write, file.read):
            started = time.perf_counter()
            move(0, [buffer])
            seconds.append(max(time.perf_counter() - started, 1e-9))
    finally:
        file.close()
    return buffer.nbytes / seconds[1], buffer.nbytes / seconds[0]
