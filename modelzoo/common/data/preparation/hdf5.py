"""Writes records of language models to HDF5: dataset ``data`` int32 [n, 3, S], gzip.

The second axis is input_ids, input_mask (1 = real token) and labels; the attribute n_examples of
the file is n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install
from modelzoo.common.data.preparation import records

COLUMNS = ("input_ids", "input_mask", "labels")
BATCH = 256  # records kept in memory and compressed at a time


class Hdf5Writer(records.RecordWriter):
    """Writes records to HDF5 files instead of TFRecords; see RecordWriter."""

    def __init__(self, folder, prefix, records_per_file=None):
        super().__init__(folder, prefix, records_per_file, suffix=".h5")

    def write(self, features):
        """Writes one record from integer arrays [S] under COLUMNS."""
        self.write_bytes(np.stack([features[name] for name in COLUMNS]).astype(np.int32))

    def open(self, path):
        """Opens a file for `append`."""
        return _Hdf5File(path)

    def append(self, file, record):
        """Adds one record, [3, S] int32."""
        file.add(record)


class _Hdf5File:
    def __init__(self, path):
        try:
            import h5py
        except ImportError as error:
            raise ConfigError(
                f"HDF5: needs the package h5py. Received: {error}. Run: {pip_install('h5py')}"
            ) from error
        self._file = h5py.File(path, "w")
        self._data: Any = None
        self._waiting = []

    def add(self, record):
        self._waiting.append(record)
        if len(self._waiting) == BATCH:
            self._flush()

    def _flush(self):
        rows = np.stack(self._waiting)
        if self._data is None:
            self._data = self._file.create_dataset(
                "data",
                (0, *rows.shape[1:]),
                np.int32,
                maxshape=(None, *rows.shape[1:]),
                chunks=(1, *rows.shape[1:]),
                compression="gzip",
            )
        before = len(self._data)
        self._data.resize(before + len(rows), axis=0)
        self._data[before:] = rows
        self._waiting = []

    def close(self):
        if self._waiting:
            self._flush()
        self._file.attrs["n_examples"] = len(self._data)
        self._file.close()
