"""Folders and files of the kernel cache: what is read is what this user wrote.

A damaged file would compute wrong numbers, and a file of another user could run any code. Each
version of the kernels has a folder; processes lock the one that they use, and old ones are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from pathlib import Path
from typing import Optional

from cerebras_tf.whole_file import remove_partial, replacing, sync

_DIGEST_BYTES = 32
_OTHERS_WRITE = 0o022
_VERSION = re.compile(r"kernels-[0-9a-f]{12}(\.removed)?")
MAX_OTHER_VERSIONS = 8
MAX_UNUSED_S = 30 * 24 * 3600
_warned: set[str] = set()


def use_folder(folder: Path) -> str:
    """Creates the folder of a version, and locks it until this process ends.

    If it is new, unused folders of other versions are removed.

    Returns:
        Why the folder cannot be used; "" if it can.
    """
    is_new = not folder.exists()
    while True:
        why = why_unusable(folder)
        if why:
            return why
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError:  # a file system without locks
            os.close(handle)
            break
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), folder.stat()):
                break
        os.close(handle)  # it was removed before it was locked
    os.utime(folder)
    remove_partial(folder)
    if is_new:
        _remove_old_versions(folder)
    return ""


def why_unusable(folder: Path) -> str:
    """Creates a folder for the user alone; why it cannot be a cache, "" if it can."""
    try:
        for each in reversed((folder, *folder.parents)):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            status = folder.stat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o077:
            folder.chmod(0o700)
            status = folder.stat()
    except OSError as error:
        return error.strerror or str(error)
    is_private = status.st_uid in (os.geteuid(), 0) and not status.st_mode & _OTHERS_WRITE
    return "" if is_private else "other users can write there"


def _remove_old_versions(kept: Path) -> None:
    """Removes this user's folders of other versions: those unused for long, and all but the last.

    A folder that a process uses stays.
    """
    found = []
    for path in kept.parent.iterdir():
        with contextlib.suppress(OSError):  # removed by another process
            status = path.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if _VERSION.fullmatch(path.name) and is_own and path.name != kept.name:
                found.append((status.st_mtime, path))
    for number, (used, path) in enumerate(sorted(found, reverse=True)):
        if number >= MAX_OTHER_VERSIONS or used < time.time() - MAX_UNUSED_S:
            with contextlib.suppress(OSError):  # in use, or removed by another process
                _remove_unused(path)


def _remove_unused(path: Path) -> None:
    """Removes a folder; raises BlockingIOError if a process uses it."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed = path.with_name(path.name.removesuffix(".removed") + ".removed")
        if path != removed:
            shutil.rmtree(removed, ignore_errors=True)
            path.rename(removed)
        shutil.rmtree(removed)
    finally:
        os.close(handle)


def remove_folder(path: Path) -> None:
    """Removes a temporary cache at the end of the process.

    Its threads may still compile: what they write afterwards fails without a warning.
    """
    _warned.add("unwritable")
    removed = path.with_name(path.name + ".removed")
    with contextlib.suppress(OSError):
        path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def read(path: Path) -> Optional[memoryview]:
    """The content that `write` wrote; None if there is no such file, or it was changed."""
    with contextlib.suppress(OSError):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if (
                stat.S_ISREG(status.st_mode)
                and status.st_uid in (os.geteuid(), 0)
                and not status.st_mode & _OTHERS_WRITE
            ):
                stored = memoryview(file.read())
                content = stored[_DIGEST_BYTES:]
                if stored[:_DIGEST_BYTES] == _digest(path, content):
                    return content
    _warn_once(
        "damaged",
        f"compiled kernels: a file of the cache must be undamaged, of this user, and not writable "
        f"by others. Received: {path}. Such files are compiled again and replaced.",
    )
    return None


def write(path: Path, content: bytes) -> None:
    """Writes a file atomically; if that fails, warns once."""
    try:
        if path.is_symlink():
            path.unlink()
        with replacing(path, sync=False) as partial:  # which makes no folder
            partial.chmod(0o600)
            partial.write_bytes(_digest(path, content) + content)
            sync(partial)
    except OSError as error:
        warn_unwritable(error)


def warn_unwritable(error: OSError) -> None:
    """Warns once that the cache cannot be written, with the reason."""
    _warn_once(
        "unwritable",
        f"compiled kernels: the cache must be writable, with disk space. Received: {error}. What "
        "is missing there is compiled again in every process. Set NUMBA_CACHE_DIR to another "
        "folder.",
    )


def _digest(path: Path, content: bytes | memoryview) -> bytes:
    """Of the name, too: the content of another file is as wrong as a damaged one."""
    digest = hashlib.blake2b(path.name.encode(), digest_size=_DIGEST_BYTES)
    digest.update(content)
    return digest.digest()


def _warn_once(kind: str, text: str) -> None:
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(text, RuntimeWarning, stacklevel=3)
