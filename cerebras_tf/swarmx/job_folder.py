"""The folder in which a job's processes tell of themselves, as long as one of them is there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".job_"
HELD = ".held"  # a file that every process of the job holds a lock of


@contextlib.contextmanager
def own_folder(logs: Path) -> Iterator[Path]:
    """A folder for the processes of one job, and of no other job of the model.

    Args:
        logs: where logs of all jobs of the model are.
    """
    logs.mkdir(parents=True, exist_ok=True)
    _sweep(logs)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=logs))
    # Another job sees the file once it is locked.
    with open(folder / f"{HELD}.new", "w+b") as held:  # NFS shares locks of readable files alone
        _lock(held.fileno(), fcntl.LOCK_SH)
        (folder / f"{HELD}.new").rename(folder / HELD)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def hold(folder: str) -> None:
    """Has the folder stay as long as this process lives, also where its launcher is gone."""
    with contextlib.suppress(OSError):
        _lock(os.open(Path(folder, HELD), os.O_RDWR), fcntl.LOCK_SH)


def _sweep(logs: Path) -> None:
    """Removes folders of jobs of which every process is gone, as after `kill -9`."""
    for folder in logs.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), open(folder / HELD, "r+b") as held:
            if _lock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(folder, ignore_errors=True)


def _lock(file: int, how: int) -> bool:
    """Locks a file; False where another process holds it, or the file system has no locks."""
    try:
        fcntl.flock(file, how)
    except OSError:
        return False
    return True
