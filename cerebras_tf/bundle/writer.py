"""Writes a TensorFlow checkpoint variable by variable, without TensorFlow.

Contents begin at multiples of ALIGNMENT_BYTES, so that a store on the same file system can link the
files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Optional

import numpy as np

from cerebras_tf.bundle.index import Entry
from cerebras_tf.bundle.links import link_checkpoint
from cerebras_tf.ir import Array
from cerebras_tf.kernels.compiled_crc32c import crc32c
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES
from cerebras_tf.memoryx.file_store import FILE_BYTES
from cerebras_tf.memoryx.process_folder import OwnFolder, remove_abandoned

# Written bytes are flushed to the disk, and dropped from the page cache, at least this often.
_FLUSH_BYTES = 1 << 26
_PREFIX = "made-"


class BundleWriter:
    """Writes the data files of a checkpoint.

    Args:
        folder: an existing folder on the file system of the checkpoint. The files are written in a
            new folder inside; those of killed processes are removed.

    Attributes:
        entries: where the variables are stored, by name.
    """

    def __init__(self, folder: str) -> None:
        self.entries: dict[str, Entry] = {}
        self._folder = Path(folder)
        self._own: Optional[OwnFolder] = None
        self._paths: list[Path] = []
        self._file: Optional[IO[bytes]] = None
        self._end = 0

    def add(self, name: str, array: Array, dtype: str = "") -> None:
        """Writes a variable.

        Args:
            array: its content, of any shape; bfloat16 as bits, uint16.
            dtype: an IR dtype; None for that of the array.

        Raises:
            OSError: it cannot be written.
        """
        shape = array.shape
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        file = self._file_for(content.nbytes)
        offset = self._end
        for start in range(0, content.nbytes, _FLUSH_BYTES):
            _write(file, content[start : start + _FLUSH_BYTES].data)
            _hand_over(file)
        path = str(self._paths[-1])
        kind = dtype or array.dtype.name
        place = path, offset, content.nbytes, crc32c(content)
        self.entries[name] = Entry(kind, shape, *place)
        self._end = offset + content.nbytes

    def _file_for(self, size: int) -> IO[bytes]:
        """The file for the next content, positioned at its offset."""
        start = -(-self._end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if self._file is None or (start and start + size > FILE_BYTES):
            self._close()
            if self._own is None:
                # Files that a killed process left may be shared by a checkpoint: none is opened.
                remove_abandoned(self._folder, f"{_PREFIX}*")
                self._own = OwnFolder(self._folder, _PREFIX)
            self._paths.append(self._own.path / f"{len(self._paths):05d}.bin")
            self._file = open(self._paths[-1], "xb", buffering=0)  # noqa: SIM115 - see _close
            start = 0
        self._file.seek(start)
        self._end = start
        return self._file

    def finish(self, prefix: str) -> None:
        """Completes the checkpoint; it is on the disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        self._close()
        link_checkpoint(prefix, self.entries)
        self.discard()

    def discard(self) -> None:
        """Removes the written files, except those that checkpoints share."""
        self._close()
        self._paths.clear()
        if self._own is not None:
            self._own.remove()
            self._own = None

    def _close(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def _write(file: IO[bytes], content: memoryview) -> None:
    """Writes all bytes: an unbuffered file may accept only a part of them."""
    while content:
        content = content[file.write(content) :]


def _hand_over(file: IO[bytes]) -> None:
    """Flushes the page cache of a file to the disk, and drops it."""
    os.fdatasync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
