"""Checkpoints of TensorFlow's format made of files that are there: by links, and an index.

Data files of a checkpoint are arrays behind one another, which is what the files of a store are
too. So nothing is written but the index, unless the checkpoint is on another file system.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace

from cerebras_tf.memoryx.bundle import Entry, data_path, index_path, write_index


def link_checkpoint(prefix: str, entries: Mapping[str, Entry]) -> None:
    """Makes a checkpoint; it is there as a whole once its index is.

    Args:
        prefix: path prefix of its files. The folder must be there.
        entries: where every variable lies, by name. Their files must never change any more.

    Raises:
        OSError: a file can neither be linked nor copied, or the index cannot be written.
    """
    sources = sorted({entry.path for entry in entries.values()})
    targets = [data_path(prefix, number, len(sources)) for number in range(len(sources))]
    place = dict(zip(sources, targets))
    moved = {name: replace(entry, path=place[entry.path]) for name, entry in entries.items()}
    _remove(prefix)  # the index first, so that no index ever stands over other data
    try:
        for source, target in place.items():
            _link(source, target)
        write_index(prefix, moved, len(sources))
    except BaseException:
        _remove(prefix)
        raise
    folder = os.open(os.path.dirname(os.path.abspath(prefix)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(prefix: str) -> None:
    """Removes the files of a checkpoint, finished or not."""
    parts = glob.glob(f"{glob.escape(prefix)}.data-*")
    for path in [index_path(prefix), f"{index_path(prefix)}.part", *parts]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _link(source: str, target: str) -> None:
    """A second name for a file; a copy of it where there can be none."""
    try:
        os.link(source, target)
    except OSError:
        part = f"{target}.part"
        shutil.copyfile(source, part)
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
