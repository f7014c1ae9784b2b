"""A folder that belongs to one process for as long as it lives; those of killed ones are removed.

A lock within says whether its process lives: in another container its number says nothing. Where
the file system has no locks, what killed processes left there stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cerebras_tf.memoryx import process_lock

_LOCK = "lock"


class OwnFolder:
    """A new folder below another.

    Args:
        parent: a folder that is there.
        prefix: begins its name, which chance ends.

    Attributes:
        path: the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        self._process = os.getpid()
        self.path, self._lock = _made(parent, prefix)

    def remove(self) -> None:
        """Removes the folder with all that is in it, unless a child process asks for it."""
        if os.getpid() != self._process:
            return
        _remove(self.path)
        _close(self._lock)


def remove_abandoned(
    parent: Path, pattern: str, before: Callable[[Path], None] = lambda folder: None
) -> None:
    """Removes the folders of killed processes below another, as far as that can be.

    Args:
        parent: where they are.
        pattern: of their names, for `Path.glob`.
        before: called with each that has content, before it goes.
    """
    for folder in parent.glob(pattern):
        _remove_abandoned(folder, before)


def _made(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the descriptor of its lock, which is held.

    Another process may take it for abandoned while it has no lock yet; then there is a next one.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        is_taken = False
        try:
            process_lock.lock(lock)
        except BlockingIOError:
            is_taken = True
        except OSError:  # a file system without locks
            pass
        if not is_taken and (path / _LOCK).exists():
            return path, lock
        _close(lock)


def _close(lock: int) -> None:
    process_lock.let_go(lock)
    os.close(lock)


def _remove_abandoned(folder: Path, before: Callable[[Path], None]) -> None:
    """Removes a folder unless its process holds the lock."""
    try:
        with _locked(folder / _LOCK):
            before(folder)
            _remove(folder)
    except FileNotFoundError:  # of a process that was killed before it had a lock: it is empty
        with contextlib.suppress(OSError):
            folder.rmdir()
    except OSError:
        pass


def _remove(folder: Path) -> None:
    """Removes a folder, its lock last: what is killed on the way leaves one that is abandoned."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink()
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Within: the lock of a file that is there is ours; raises OSError where it is another's."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        process_lock.lock(descriptor)
        yield
    finally:
        _close(descriptor)
