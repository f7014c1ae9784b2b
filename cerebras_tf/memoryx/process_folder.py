"""Folders that belong to a running process; those of killed processes are removed.

A lock file shows whether the process is running: process ids differ between containers. On file
systems without locks, folders of killed processes are not removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cerebras_tf.errors import StoreError
from cerebras_tf.memoryx import process_folder

_held: set[int] = set()  # descriptors


def lock(descriptor: int) -> None:
    """Locks an open file for this process alone.

    Raises:
        BlockingIOError: another one has locked it.
        OSError: the file system has no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held.add(descriptor)


def untrack(descriptor: int) -> None:
    """Must be called before a descriptor is closed."""
    _held.discard(descriptor)


@contextlib.contextmanager
def tracked(descriptor: int) -> Iterator[None]:
    """Within: the descriptor is in use; afterwards the caller closes it."""
    try:
        yield
    finally:
        untrack(descriptor)


def _release_in_child() -> None:
    """In a forked child: redirects the descriptors to /dev/null, so that it holds no locks."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _held:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


_LOCK = "lock"


class OwnFolder:
    """A new folder below another.

    Args:
        parent: an existing folder.
        prefix: start of its name; the end is random.

    Attributes:
        path: the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        self._process = os.getpid()
        self.path, self._lock = _made(parent, prefix)

    def remove(self) -> None:
        """Removes the folder and its content; does nothing in a child process."""
        if os.getpid() != self._process:
            return
        _remove(self.path)
        _close(self._lock)


def remove_abandoned(
    parent: Path, pattern: str, before: Callable[[Path], None] = lambda folder: None
) -> None:
    """Removes the folders of this user's killed processes, if permitted.

    Args:
        parent: where they are.
        pattern: of their names, for `Path.glob`.
        before: called with each folder before it is removed.
    """
    for folder in parent.glob(pattern):
        with contextlib.suppress(OSError):
            found = folder.lstat()  # a link may lead to a folder of others
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                _remove_abandoned(folder, before)


def _made(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder, and the descriptor of its lock, which is held.

    Another process may remove it before it is locked; then another one is made.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        is_taken = False
        try:
            process_folder.lock(lock)
        except BlockingIOError:
            is_taken = True
        except OSError:  # a file system without locks
            pass
        if not is_taken and (path / _LOCK).exists():
            return path, lock
        _close(lock)


def _close(lock: int) -> None:
    process_folder.untrack(lock)
    os.close(lock)


def _remove_abandoned(folder: Path, before: Callable[[Path], None]) -> None:
    """Removes a folder unless its process holds the lock."""
    try:
        with _locked(folder / _LOCK):
            before(folder)
            _remove(folder)
    except FileNotFoundError:  # its process was killed before it made the lock: it is empty
        with contextlib.suppress(OSError):
            folder.rmdir()
    except OSError:
        pass


def _remove(folder: Path) -> None:
    """Removes a folder, its lock last, so that an interrupted removal can be repeated."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink()
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Within: holds the lock of an existing file; raises OSError if another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        process_folder.lock(descriptor)
        yield
    finally:
        _close(descriptor)


_PREFIX = "memoryx-"
_RANK = "rank_"


class StoreFolder(OwnFolder):
    """A new folder of a store; first removes those of killed processes, of all ranks.

    Args:
        parent: created if it does not exist.

    Raises:
        StoreError: it cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_stores(parent.parent if parent.name.startswith(_RANK) else parent)
            super().__init__(parent, _PREFIX)
        except OSError as error:
            raise _unusable(parent, str(error.strerror)) from error


def remove_stores(folder: Path) -> None:
    """Removes the stores of killed processes, of all ranks, from a memoryx_dir."""
    with contextlib.suppress(OSError):  # a store that is made there raises it
        for pattern in (f"{_PREFIX}*", f"{_RANK}*/{_PREFIX}*"):
            remove_abandoned(folder, pattern)


def require_usable(folder: str) -> None:
    """Raises StoreError if a store's folder could not be made in a folder; writes nothing."""
    path = Path(os.path.abspath(folder))
    there = next(found for found in (path, *path.parents) if os.path.lexists(found))
    if not there.is_dir():
        raise _unusable(path, f"{there} is no folder")
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(path, str(error.strerror)) from error
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unusable(path, f"{there} cannot be written to")


def _unusable(folder: Path, received: str) -> StoreError:
    return StoreError(
        f"memoryx_dir {folder}: must be a writable folder. Received: {received}. Use another "
        "folder or correct its permissions."
    )


def folder_of(rank: int, folder: str) -> str:
    """The folder of one of several wafers, below the common one."""
    return os.path.join(folder, f"{_RANK}{rank}")
