"""Takes a model of Hugging Face's in file by file, deleting each once its weights are on the disk.

What was made of a file is a small checkpoint of its own, in a folder inside the output, until all
are there; a journal beside them says which files are done and what they held. A conversion that was
stopped, in whatever instant, goes on from there when it is started again; the journal goes once the
checkpoint is whole.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np

from cerebras_tf.bundle.index import read_index
from cerebras_tf.bundle.links import link_checkpoint
from cerebras_tf.bundle.writer import BundleWriter
from cerebras_tf.errors import CheckpointError, ConfigError
from modelzoo.common.convert.hugging_face import HuggingFaceReader, read_json
from modelzoo.common.convert.layout import Link
from modelzoo.common.convert.tensorflow_checkpoint import GLOBAL_STEP, record_latest

_FOLDER, _JOURNAL = ".taken_in", "journal.json"
_WEIGHT_BYTES = 4  # of float32


class TakenIn:
    """A conversion that deletes its source.

    Args:
        source: folder of the model.
        output: folder of the checkpoint.
        program: must be Hugging Face's.

    Raises:
        ConfigError: it is another.
    """

    def __init__(self, source, output, program):
        if program != "hugging_face":
            raise ConfigError(
                f"--delete_source: needs --program hugging_face, whose models lie in files that "
                f"can be taken in one by one. Received: {program}. Leave --delete_source out."
            )
        self._source = Path(source)
        self._folder = Path(output) / _FOLDER
        journal = self._folder / _JOURNAL
        self._done = read_json(journal) if journal.exists() else {}
        if not self._done:  # what is left then is of no file that is gone
            shutil.rmtree(self._folder, ignore_errors=True)
        self._shapes, self._places = {}, {}

    @property
    def has_begun(self):
        """Whether files were taken in by a conversion that was stopped.

        A checkpoint in the output is its own then, in part or whole, and is made anew.
        """
        return bool(self._done)

    def reader(self):
        """Returns the reader of the source, also of what is gone.

        Raises:
            CheckpointError: the source is another than before.
        """
        gone = {file: taken["tensors"] for file, taken in self._done.items()}
        for file, taken in self._done.items():
            path = self._source / file
            if path.exists() and _stamp(path) != taken["stamp"]:
                raise CheckpointError(
                    f"{path}: must be the file that was taken in before, or gone. Received: "
                    f"another. Remove {self._folder} to begin anew."
                )
        reader = HuggingFaceReader(self._source, gone)
        self._shapes, self._places = reader.shapes, reader.places
        return reader

    def take_in(self, layout, names, tensors):
        """Converts and deletes the files that are left, one after the other.

        Args:
            layout: Layout of the model.
            names: tensor there by name in the layout.
            tensors: function of links, yields (name, float32 array) of our variables.

        Raises:
            CheckpointError: the disk is too small.
            OSError: something cannot be written or deleted.
        """
        places = self._places
        links: dict[str, list[Link]] = {file: [] for file in sorted(set(places.values()))}
        for link in layout.links:
            links[places[names[link.theirs]]].append(link)
        left = [file for file in links if file not in self._done]
        sizes = {file: (self._source / file).stat().st_size for file in left}
        need, freed = 0, 0
        for file in left:
            need = max(need, weight_bytes(links[file]) - freed)
            freed += sizes[file] - weight_bytes(links[file])
        check_room(self._folder.parent, need)
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in links:
            if file not in self._done:
                writer = BundleWriter(str(self._folder))
                for name, array in tensors(links[file]):
                    writer.add(name, array)
                    del array
                writer.finish(self._prefix(file))
                tensors_of = {n: self._shapes[n] for n, place in places.items() if place == file}
                stamp = _stamp(self._source / file)
                self._done[file] = {"tensors": tensors_of, "stamp": stamp}
                self._write_journal()
            (self._source / file).unlink(missing_ok=True)

    def write(self, folder, name):
        """Makes the checkpoint of what was taken in, by links, with the global step 0."""
        writer = BundleWriter(str(self._folder))
        writer.add(GLOBAL_STEP, np.zeros((), np.int64))
        writer.finish(self._prefix(GLOBAL_STEP))
        entries = {}
        for file in [*self._done, GLOBAL_STEP]:
            entries.update(read_index(self._prefix(file)))
        link_checkpoint(os.path.join(folder, name), entries)
        record_latest(folder, name)

    def end(self):
        """Removes what was kept for a restart, first the journal that would ask for the rest."""
        (self._folder / _JOURNAL).unlink()
        shutil.rmtree(self._folder)

    def _prefix(self, file):
        return str(self._folder / file)

    def _write_journal(self):
        path = self._folder / _JOURNAL
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(self._done, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.part", path)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _stamp(path):
    """What tells a file from another of its name: its size and the time of its last change."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def weight_bytes(links):
    """Bytes of the float32 weights of links."""
    return sum(math.prod(link.shape) for link in links) * _WEIGHT_BYTES


def check_room(folder, need, advice=""):
    """Raises CheckpointError, with an advice, where a folder's disk has less than `need` bytes."""
    there = Path(folder).absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if need > free:
        raise CheckpointError(
            f"{folder}: {need / 1e9:.3g} GB must be free for the weights in float32. Received: "
            f"{free / 1e9:.3g} GB. Free disk space, or give another folder.{advice}"
        )
