"""A folder that belongs to one store for as long as its process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cerebras_tf.errors import StoreError

_PREFIX = "memoryx-"
_LOCK = "lock"
_RANK = "rank_"


class StoreFolder:
    """A new folder below another; those that killed processes left there are removed first.

    Of several wafers that is what all have left: the next job may have fewer.

    Args:
        parent: made where it is missing.

    Attributes:
        path: the folder.

    Raises:
        StoreError: it cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        self._process = os.getpid()
        try:
            parent.mkdir(parents=True, exist_ok=True)
            top = parent.parent if parent.name.startswith(_RANK) else parent
            for pattern in (f"{_PREFIX}*", f"{_RANK}*/{_PREFIX}*"):
                for left in top.glob(pattern):
                    _remove_abandoned(left)
            self.path, self._lock = _made(parent)
        except OSError as error:
            raise StoreError(
                f"memoryx_dir {parent}: must be a folder that files can be written to. "
                f"Received: {error.strerror}. Give another folder or correct its permissions."
            ) from error

    def remove(self) -> None:
        """Removes the folder with all that is in it, unless a child process asks for it."""
        if os.getpid() != self._process:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def folder_of(rank: int, folder: str) -> str:
    """Where one of several wafers has its store's folder, below that of all."""
    return os.path.join(folder, f"{_RANK}{rank}")


def _made(parent: Path) -> tuple[Path, int]:
    """A new folder and the descriptor of its lock, which is held.

    Another process may take it for abandoned while it has no lock yet; then there is a next one.
    """
    while True:
        # A name of chance: processes of two containers may have one number.
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / _LOCK).exists():
                return path, lock
        os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    """Removes a store's folder unless its process holds the lock."""
    try:
        with _locked(folder / _LOCK):
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:  # of a process that was killed before it had a lock: it is empty
        with contextlib.suppress(OSError):
            folder.rmdir()
    except OSError:
        pass


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Within: the lock of a file that is there is ours; raises OSError where it is another's."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
