"""Files of the kernel cache: what is read is what this user wrote.

A damaged file would compute wrong numbers, and a file of another user could run any code.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import Optional

_DIGEST_BYTES = 32
_warned: set[str] = set()


def why_unusable(folder: Path) -> str:
    """Creates a folder for the user alone; why it cannot be a cache, "" if it can."""
    try:
        for each in reversed((folder, *folder.parents)):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            status = folder.stat()
    except OSError as error:
        return error.strerror or str(error)
    # Of a folder of this user that others can write, only the files of this user are read.
    if status.st_uid == os.geteuid() or not (status.st_uid or status.st_mode & 0o022):
        return ""
    return "other users can write there"


def read(path: Path) -> Optional[memoryview]:
    """The content that `write` wrote; None if there is none, or another."""
    try:
        with open(path, "rb") as file:
            owner, stored = os.fstat(file.fileno()).st_uid, memoryview(file.read())
    except OSError:
        return None
    content = stored[_DIGEST_BYTES:]
    if owner in (os.geteuid(), 0) and stored[:_DIGEST_BYTES] == _digest(path, content):
        return content
    _warn_once(
        "damaged",
        f"compiled kernels: a file of the cache must be undamaged, and of this user. Received: "
        f"{path}. Such files are compiled again and replaced.",
    )
    return None


def write(path: Path, content: bytes) -> None:
    """Writes a file atomically; if that fails, warns once."""
    # Without fsync: the digest finds a file that was lost because the computer stopped.
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(_digest(path, content))
            file.write(content)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        warn_unwritable(error)
    finally:
        if temporary is not None:
            os.unlink(temporary)


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
