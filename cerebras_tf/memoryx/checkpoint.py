"""Checkpoints of TensorFlow's format made of files that are there: by links, and an index.

Data files of a checkpoint are arrays behind one another, which is what the files of a store are
too. So nothing is written but the index, unless the checkpoint is on another file system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace

from cerebras_tf.memoryx.bundle import Entry, data_path, write_index


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
    for source, target in zip(sources, targets):
        _link(source, target)
    place = dict(zip(sources, targets))
    moved = {name: replace(entry, path=place[entry.path]) for name, entry in entries.items()}
    write_index(prefix, moved, len(sources))
    folder = os.open(os.path.dirname(os.path.abspath(prefix)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _link(source: str, target: str) -> None:
    """A second name for a file; a copy of it where there can be none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.link(source, target)
    except OSError:
        part = f"{target}.part"
        shutil.copyfile(source, part)
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
