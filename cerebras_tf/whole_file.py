"""Writes text files atomically, and checks in advance whether they can be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from cerebras_tf.errors import ConfigError


def write_whole(path: Union[str, Path], text: str) -> Path:
    """Writes a text file under a temporary name, then renames it.

    Pipes and devices are written directly; the target of a link is replaced.

    Args:
        path: the file. Its folder is created if it is missing.

    Returns:
        The path.
    """
    path = Path(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    target.parent.mkdir(parents=True, exist_ok=True)
    if _is_stream(path):
        path.write_text(text, encoding="utf-8")
        return path
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
        return path
    except OSError as error:  # such as a full disk
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def require_place(path: Union[str, Path, None], option: str) -> None:
    """Refuses a path that `write_whole` cannot write, before a long computation.

    Args:
        path: of the file; None for no file.

    Raises:
        ConfigError: it is a folder, below a file, or in a folder that is not writable.
    """
    if path is None or _is_stream(Path(path)):
        return
    file = Path(os.path.realpath(path))
    above = next(folder for folder in file.parents if os.path.exists(folder))
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
