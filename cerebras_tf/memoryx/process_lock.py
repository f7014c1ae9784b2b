"""Locks of files that belong to one process: children that it forks do not hold them.

A lock of flock(2) lasts as long as any process has the open file, and a forked one has it: without
this, workers of an input pipeline would keep the lock of a process that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

_held: set[int] = set()  # descriptors


def lock(descriptor: int) -> None:
    """Locks an open file for this process alone.

    Args:
        descriptor: to be given to `let_go` before it is closed.

    Raises:
        BlockingIOError: another one has locked it.
        OSError: the file system has no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held.add(descriptor)


def let_go(descriptor: int) -> None:
    """Says that a descriptor, locked or not, is about to be closed."""
    _held.discard(descriptor)


@contextlib.contextmanager
def let_go_after(descriptor: int) -> Iterator[None]:
    """Lets go of a descriptor at the end of the block, which whoever opened it closes then."""
    try:
        yield
    finally:
        let_go(descriptor)


def _forget() -> None:
    """In a forked child: the descriptors stay valid, for whoever closes them, and lead nowhere."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _held:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
