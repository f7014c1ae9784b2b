"""Locks a model folder, so that one process at a time writes in it; others may evaluate."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.memoryx import process_folder
from cerebras_tf.whole_file import UNFINISHED, refuse_url, remove_partial, sync

_FILE = ".lock"
# Locked folders, with the process and the thread that hold the lock.
_held: set[tuple[str, int, int]] = set()


@contextlib.contextmanager
def locked_folder(
    model_dir: str,
    writes: bool = True,
    clean: Callable[[str], Any] = lambda folder: None,
    name: str = "model_dir",
) -> Iterator[None]:
    """Creates a folder and locks it for training, or for another writer.

    The lock is reentrant: a runner takes it before it reads data, and the estimator again when it
    trains. It ends with the process.

    Args:
        writes: False to write nothing, and to lock a folder only if it was locked before.
        clean: removes unfinished files from the folder, at both ends.
        name: of the option, for errors.

    Raises:
        ConfigError: the folder cannot be created, or another process or thread writes in it.
    """
    refuse_url(model_dir, name)
    holder = _holder(model_dir)
    absent = not writes and not os.path.exists(os.path.join(model_dir, _FILE))
    if holder in _held or absent:
        yield
        return
    with _locked_file(model_dir, writes, clean, name):
        _held.add(holder)
        try:
            yield
        finally:
            _held.discard(holder)


def _holder(folder: str) -> tuple[str, int, int]:
    return os.path.realpath(folder), os.getpid(), threading.get_ident()


@contextlib.contextmanager
def _locked_file(
    model_dir: str, writes: bool, clean: Callable[[str], Any], name: str
) -> Iterator[None]:
    """Holds the lock file of the folder, which contains the id of this process."""
    path = os.path.join(model_dir, _FILE)
    try:
        os.makedirs(model_dir, exist_ok=True)
        _refuse_links_of_others(model_dir, name)
        file = open(path, "ab+" if writes else "rb", buffering=0)  # noqa: SIM115 - held open below
    except OSError as error:
        raise ConfigError(
            f"{name}: must be a writable folder. Received: {model_dir!r} ({error.strerror}). "
            "Use another folder."
        ) from error
    with file, process_folder.tracked(file.fileno()):
        try:
            process_folder.lock(file.fileno())
            if not _is_same(path, file.fileno()):  # its owner has removed it
                raise BlockingIOError
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read(20).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"{name}: must not be in use by another run. Received: {model_dir!r}, which "
                f"process {holder} writes in. Wait until it ends, or use another folder."
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
                f"{name}: must have enough disk space. Received: {model_dir!r} "
                f"({error.strerror}). Free disk space, or use another folder."
            ) from error
        for folder in (model_dir, os.path.join(model_dir, "eval")):
            remove_partial(folder)
        clean(model_dir)
        try:
            yield
        finally:
            clean(model_dir)


def _refuse_links_of_others(folder: str, name: str) -> None:
    """Refuses links, pipes and devices of other users, through which files elsewhere are written.

    Raises:
        ConfigError: the folder has one.
    """
    for entry in os.scandir(folder):
        is_plain = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
        if not is_plain and entry.stat(follow_symlinks=False).st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{name}: must have no links, pipes or devices of other users. Received: "
                f"{entry.path}. Remove it, or use another folder."
            )


def _is_same(path: str, descriptor: int) -> bool:
    """Whether a path is that of an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def writer_of(model_dir: str) -> Optional[str]:
    """Id of another process that writes in a folder; None if there is none."""
    try:
        with locked_folder(model_dir, writes=False):
            return None
    except ConfigError as error:
        found = re.search(r"process (\w+) writes", str(error))
        return found and found[1]


@contextlib.contextmanager
def whole_folder(
    target: Union[str, Path], patterns: Sequence[str], overwrite: bool
) -> Iterator[Path]:
    """Gives a folder to write files in, and moves them to `target` when the block ends well.

    Meanwhile the target is locked, as by training.

    Args:
        target: folder of the files; made where there is none.
        patterns: file name patterns of what is written, the last of which comes last. Files of
            these names that are there already are replaced.

    Yields:
        Path of the folder to write in.

    Raises:
        CheckpointError: there are such files and `overwrite` is False; or they cannot be written.
        ConfigError: another process writes in the target.
    """
    target = Path(target)
    made, is_training = not target.exists(), _holder(str(target)) in _held
    with locked_folder(str(target), name="output"):
        try:
            with _unfinished(target, patterns, overwrite) as partial:
                yield partial
        finally:
            if not is_training:  # also one that a killed process left
                (target / _FILE).unlink(missing_ok=True)
            if made:
                with contextlib.suppress(OSError):
                    target.rmdir()  # only where nothing came of it


@contextlib.contextmanager
def _unfinished(target: Path, patterns: Sequence[str], overwrite: bool) -> Iterator[Path]:
    old = [path for pattern in patterns for path in sorted(target.glob(pattern))]
    if old and not overwrite:
        raise CheckpointError(
            f"{target}: must not contain a checkpoint. Received: {old[-1].name}. Use another "
            "folder, or --overwrite to replace it."
        )
    partial = target / UNFINISHED
    try:
        partial.mkdir()
        yield partial
        new = [path for pattern in patterns for path in sorted(partial.glob(pattern))]
        for path in new:
            sync(path)
        for path in reversed(old):
            path.unlink()
        for path in new:
            os.replace(path, target / path.name)
        sync(target)
    except OSError as error:
        raise CheckpointError(
            f"{target}: must be a folder with disk space for the checkpoint. Received: "
            f"{error.strerror or error}. Free disk space, or use another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
