"""Makes TensorFlow checkpoints from existing files, by links and an index.

Data files of a checkpoint are concatenated arrays, as are the files of a store. So only the index
is written, unless the checkpoint is on another file system.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cerebras_tf.bundle.index import TensorSlice, data_path, index_path, write_index
from cerebras_tf.memoryx.store import FileRegion
from cerebras_tf.whole_file import replacing

# What TensorFlow calls a list of checkpoints or a graph until it is whole.
_BEGUN = re.compile(r"(checkpoint|graph\.pbtxt|.*\.meta)\.tmp[0-9a-f]{32}")


def link_checkpoint(
    prefix: str,
    entries: Mapping[str, FileRegion],
    slices: Mapping[str, TensorSlice] = MappingProxyType({}),
) -> int:
    """Makes a checkpoint. It is complete, and on the disk, once its index exists.

    Args:
        prefix: path prefix of its files. The folder must exist.
        entries: where every variable is stored, by name. Their files must not change afterwards.
        slices: the slice of each name that is a part of a partitioned variable.

    Returns:
        Bytes that were copied because files could not be linked.

    Raises:
        OSError: a file can neither be linked nor copied, or the index cannot be written.
    """
    sources = sorted({entry.path for entry in entries.values()})
    targets = [data_path(prefix, number, len(sources)) for number in range(len(sources))]
    place = dict(zip(sources, targets))
    moved = {name: replace(entry, path=place[entry.path]) for name, entry in entries.items()}
    remove_checkpoint(prefix)
    try:
        copied = sum(_link(source, target) for source, target in place.items())
        write_index(prefix, moved, len(sources), slices)
    except BaseException:
        remove_checkpoint(prefix)
        raise
    _sync_folder(prefix)
    return copied


def move_checkpoint(source: str, prefix: str) -> None:
    """Renames a checkpoint. It is complete, and on the disk, once the new index exists.

    Args:
        source: path prefix of its files, which may still be in the page cache only.
        prefix: the new prefix, on the same file system. An existing checkpoint is replaced.

    Raises:
        OSError: it cannot be written. Then nothing remains under the new name.
    """
    parts = _data_files(source)
    for path in [*parts, index_path(source)]:
        _sync(path)
    remove_checkpoint(prefix)
    try:
        for path in [*parts, index_path(source)]:
            os.replace(path, prefix + path[len(source) :])
    except BaseException:
        remove_checkpoint(prefix)
        raise
    _sync_folder(prefix)


def remove_checkpoint(prefix: str) -> None:
    """Removes the data and the index of a checkpoint, finished or not.

    The index is removed first, so that no index ever refers to other data.
    """
    for path in [index_path(prefix), *_data_files(prefix)]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def remove_begun(folder: str) -> None:
    """Removes lists of checkpoints and graphs that TensorFlow has written incompletely.

    They remain if the disk is full or TensorFlow is killed. No process may write in the folder.
    """
    with contextlib.suppress(OSError):  # what is left does no harm
        for name in filter(_BEGUN.fullmatch, os.listdir(folder)):
            os.unlink(os.path.join(folder, name))


def _data_files(prefix: str) -> list[str]:
    return sorted(glob.glob(f"{glob.escape(prefix)}.data-*"))


def _link(source: str, target: str) -> int:
    """Links a file, or copies it if it cannot be linked. Returns the bytes copied."""
    try:
        os.link(source, target)
    except OSError:
        with replacing(target) as partial:
            shutil.copyfile(source, partial)
        return os.path.getsize(target)
    _sync(target)  # costs nothing where the store did so
    return 0


def _sync(path: str) -> None:
    """Waits until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(prefix: str) -> None:
    """Waits until the names of a checkpoint's files are on the disk."""
    try:
        _sync(os.path.dirname(os.path.abspath(prefix)))
    except OSError as error:  # a file system that syncs no folders
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
