"""Locks a model folder, so that one process at a time trains in it; others may evaluate."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cerebras_tf.errors import ConfigError
from cerebras_tf.memoryx import process_folder

_FILE = ".lock"
# Locked folders, with the process and the thread that hold the lock.
_held: set[tuple[str, int, int]] = set()


@contextlib.contextmanager
def locked_folder(
    model_dir: str, writes: bool = True, clean: Callable[[str], Any] = lambda folder: None
) -> Iterator[None]:
    """Creates a folder and locks it for training.

    The lock is reentrant: a runner takes it before it reads data, and the estimator again when it
    trains. It ends with the process. Folders of other file systems, such as gs://bucket/run, are
    not locked.

    Args:
        writes: False to write nothing, and to lock a folder only if it was locked before.
        clean: removes unfinished files from the folder, at both ends.

    Raises:
        ConfigError: the folder cannot be created, or another process or thread trains in it.
    """
    holder = os.path.realpath(model_dir), os.getpid(), threading.get_ident()
    absent = not writes and not os.path.exists(os.path.join(model_dir, _FILE))
    if "://" in model_dir or holder in _held or absent:
        yield
        return
    with _locked_file(model_dir, writes, clean):
        _held.add(holder)
        try:
            yield
        finally:
            _held.discard(holder)


@contextlib.contextmanager
def _locked_file(model_dir: str, writes: bool, clean: Callable[[str], Any]) -> Iterator[None]:
    """Holds the lock file of the folder, which contains the id of this process."""
    try:
        os.makedirs(model_dir, exist_ok=True)
        file = open(  # noqa: SIM115 - held open by the block below
            os.path.join(model_dir, _FILE), "ab+" if writes else "rb", buffering=0
        )
    except OSError as error:
        raise ConfigError(
            f"model_dir: must be a writable folder. Received: {model_dir!r} ({error.strerror}). "
            "Use another folder."
        ) from error
    with file, process_folder.tracked(file.fileno()):
        try:
            process_folder.lock(file.fileno())
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().decode().strip() or "unknown"
            raise ConfigError(
                f"model_dir: must not be in use by another run. Received: {model_dir!r}, which "
                f"process {holder} trains in. Wait until it ends, or use another folder."
            ) from error
        except OSError:  # a file system without locks
            pass
        if not writes:
            yield
            return
        try:
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        except OSError as error:
            raise ConfigError(
                f"model_dir: must have enough disk space. Received: {model_dir!r} "
                f"({error.strerror}). Free disk space, or use another folder."
            ) from error
        clean(model_dir)
        try:
            yield
        finally:
            clean(model_dir)
