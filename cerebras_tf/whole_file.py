"""Writes text files and folders atomically, and checks in advance whether files can be written."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Union

from cerebras_tf.errors import CheckpointError, ConfigError

_UNFINISHED = ".unfinished"


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


@contextlib.contextmanager
def whole_folder(
    target: Union[str, Path], patterns: Sequence[str], overwrite: bool
) -> Iterator[Path]:
    """Gives a folder to write files in, and moves them to `target` when the block ends well.

    Args:
        target: folder of the files; made where there is none.
        patterns: file name patterns of what is written, the last of which comes last. Files of
            these names that are there already are replaced.

    Yields:
        Path of the folder to write in.
    """
    target = Path(target)
    old = [path for pattern in patterns for path in sorted(target.glob(pattern))]
    if old and not overwrite:
        raise CheckpointError(
            f"{target}: must not contain a checkpoint. Received: {old[-1].name}. Use another "
            "folder, or --overwrite to replace it."
        )
    made = not target.exists()
    partial = target / _UNFINISHED
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        new = [path for pattern in patterns for path in sorted(partial.glob(pattern))]
        for path in reversed(old):
            path.unlink()
        for path in new:
            os.replace(path, target / path.name)
    except OSError as error:
        raise CheckpointError(
            f"{target}: must be a folder with disk space for the checkpoint. Received: "
            f"{error.strerror or error}. Free disk space, or use another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                target.rmdir()  # only where nothing came of it
