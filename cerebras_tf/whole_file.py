"""Writes files atomically, and checks in advance whether they can be written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Union

from cerebras_tf.errors import ConfigError

# Partial files and folders. A partial file is locked while it is written.
UNFINISHED = ".unfinished"
_PARTIAL = re.compile(r"\..+\.\d+")


@contextlib.contextmanager
def replacing(path: Union[str, Path], sync: bool = True) -> Iterator[Path]:
    """Gives the path of a temporary file, which replaces `path` when the block ends well.

    Args:
        path: the file; the target of a link is replaced.
        sync: whether the content is on the disk before the file is renamed, so that it is also
            whole after a power failure, and the folder is created if it is missing. False for
            files of a running process.

    Yields:
        Path of an empty file.

    Raises:
        OSError: names `path` if it cannot be written; those of other files are raised as they are.
    """
    target = Path(os.path.realpath(path))
    if sync:
        target.parent.mkdir(parents=True, exist_ok=True)
    # Threads, and processes of one number in several containers, have names of their own.
    partial = target.with_name(f".{target.name}.{secrets.randbelow(10**12)}")
    try:
        with _new(partial) as file:
            yield partial
            if sync:
                os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:  # such as a full disk
        partial.unlink(missing_ok=True)
        if error.filename not in (None, partial, str(partial)):  # another file's, read in the block
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _new(partial: Path) -> IO[bytes]:
    """A new file, locked where the file system has locks.

    Another process may remove it before it is locked; then it is made again.
    """
    while True:
        file = open(partial, "xb")  # noqa: SIM115 - the caller closes it
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if partial.exists():
            return file
        file.close()


def write_whole(path: Union[str, Path], content: Union[str, bytes], sync: bool = True) -> Path:
    """Writes a file under a temporary name, then renames it; see `replacing`.

    Pipes and devices are written directly.

    Args:
        content: the bytes, or a text that is encoded as UTF-8.

    Returns:
        The path.
    """
    path = Path(path)
    content = content.encode("utf-8") if isinstance(content, str) else content
    if _is_stream(path):
        path.write_bytes(content)
        return path
    with replacing(path, sync) as partial:
        partial.write_bytes(content)
    return path


def sync(path: Union[str, Path]) -> None:
    """Waits until a file or a folder is on the disk, where its file system can do so."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_partial(folder: Union[str, Path]) -> None:
    """Removes what `replacing` and `whole_folder` left in a folder when they were killed.

    Files of other users, and those that are being written, stay. For folders, the caller holds the
    lock of `folder`.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name != UNFINISHED and not _PARTIAL.fullmatch(entry.name):
                continue
            if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            if entry.name == UNFINISHED and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError), open(entry.path, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)


def refuse_url(path: Union[str, os.PathLike[str]], option: str) -> None:
    """Refuses a URL, such as gs://bucket/run: locks and complete files need a file system."""
    if "://" in os.fspath(path):
        raise ConfigError(
            f"{option}: must be a path of a file system of this computer. Received: "
            f"{os.fspath(path)}, a URL. Use a path without ://."
        )


def require_place(path: Union[str, Path, None], option: str) -> None:
    """Refuses a path that `write_whole` cannot write, before a long computation.

    Args:
        path: of the file; None for no file.

    Raises:
        ConfigError: it is a folder, below a file, or in a folder that is not writable.
    """
    if path is None or _is_stream(Path(path)):
        return
    refuse_url(path, option)
    file = Path(os.path.realpath(path))
    above = next((folder for folder in file.parents if os.path.exists(folder)), file)
    if os.path.isdir(file):
        received = "a folder"
    elif not os.path.isdir(above):
        received = f"a place below {above}, which is no folder"
    elif not os.access(above, os.W_OK | os.X_OK):
        received = f"a place in {above}, where you may not write"
    else:
        return
    raise ConfigError(
        f"{option} {path}: must be a file that can be written. Received: {received}. Use another."
    )


def _is_stream(path: Path) -> bool:
    """Whether a path is a pipe, device or socket."""
    opened = str(path).startswith(("/proc/", "/dev/fd/", "/dev/std"))
    return os.path.exists(path) and (opened or not (os.path.isfile(path) or os.path.isdir(path)))
