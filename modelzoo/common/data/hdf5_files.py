"""Reads and writes records of language models in HDF5 files. No record stays in memory.

A file holds the dataset ``data``, int32 [n, 3, S]: input_ids, input_mask (1 = real token) and
labels of n records, compressed by gzip; its attribute n_examples is n.
"""

from __future__ import annotations

import glob
import os
from typing import Any

import numpy as np

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.installing import pip_install
from cerebras_tf.user_files import open_regular, reason
from modelzoo.common.data.preparation import records
from modelzoo.common.data.record_files import to_int32
from modelzoo.common.files.folders import refuse_repeated
from modelzoo.common.files.path_advice import advice_on_path

COLUMNS = ("input_ids", "input_mask", "labels")
BATCH = 256  # records kept in memory and compressed at a time


def import_h5py():
    """Imports h5py; the error says how to install it."""
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(
            f"HDF5: needs the package h5py. Received: {error}. Run: {pip_install('h5py')}"
        ) from error
    return h5py


def as_folders(data_dir):
    """Returns a list of folders, also of one."""
    return [data_dir] if isinstance(data_dir, str) else list(data_dir)


class Hdf5Records:
    """The records of all ``*.h5`` files of a folder or a list of folders, by their number."""

    def __init__(self, data_dir, length):
        h5py = import_h5py()
        folders = as_folders(data_dir)
        refuse_repeated(folders)
        patterns = [os.path.join(glob.escape(folder), "*.h5") for folder in folders]
        paths = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
        if not paths:
            advice = "Write them with --file_format HDF5, or use GptTfRecordsProcessor."
            for folder in folders:
                advice = advice_on_path(folder, advice)
            raise DataError(
                f"data_dir: must be a folder with *.h5 files. Received: {', '.join(folders)}, "
                f"without any. {advice}"
            )
        self._files = [_open(h5py, path, length) for path in paths]
        self._ends = np.cumsum([len(file["data"]) for file in self._files])

    def __len__(self):
        return int(self._ends[-1])

    def rows(self, numbers):
        """Returns records: int32 [number of records, 3, S]."""
        places = np.searchsorted(self._ends, numbers, side="right")
        starts = np.concatenate([[0], self._ends])
        return np.stack([self._row(self._files[p], n - starts[p]) for p, n in zip(places, numbers)])

    def _row(self, file, number):
        where = f"{file.filename}: record {number}"
        try:
            record = file["data"][number]
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"{where}: must be complete. Received: {reason(error)}. Make the file again."
            ) from error
        return to_int32(record, where)


def _open(h5py, path, length):
    try:
        with open_regular(path):
            file = h5py.File(path, "r")
        shape, kind = file["data"].shape, file["data"].dtype.kind
        if kind not in "iu":
            raise ValueError(f"data of {file['data'].dtype}, which are no integers")
    except (OSError, KeyError, AttributeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path}: must be a complete HDF5 file with the dataset data. Received: "
            f"{reason(error)}. Make or copy the file again."
        ) from error
    if shape[1:] != (len(COLUMNS), length):
        raise DataError(
            f"{path}: data must be [records, {len(COLUMNS)}, {length}]. Received: {list(shape)}. "
            "Set max_sequence_length to the last number, or write the file again."
        )
    return file


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
        h5py = import_h5py()
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
