"""Finds and checks files of fixed-length TFRecords, and reads them without TensorFlow."""

import glob
import os
import struct

import numpy as np

from cerebras_tf.errors import DataError
from cerebras_tf.user_files import open_regular
from modelzoo.common.config.model_sections import count_vocabulary
from modelzoo.common.data.preparation.examples import decode_example
from modelzoo.common.data.prepared import check_prepared, check_tokens
from modelzoo.common.files.folders import refuse_repeated
from modelzoo.common.files.path_advice import LOOKED_UP, advice_on_path

INTEGER, FLOAT = "int64", "float32"  # kinds of a column
MASK = "input_mask"
FRAME = struct.Struct("<Q")  # a record: its length, 4 bytes of checksum, data, 4 bytes of checksum
CHECKSUM_BYTES = 4
WHOLE_CHECK_BYTES = 1 << 30  # data sets up to this size are checked for truncation beforehand


def find_record_files(data_dir):
    """Lists the files ``*.tfrecord*`` of a folder or a list of folders, sorted."""
    folders = [data_dir] if isinstance(data_dir, str) else list(data_dir)
    refuse_repeated(folders)
    files = []
    for folder in folders:
        found = sorted(glob.glob(os.path.join(glob.escape(folder), "*.tfrecord*")))
        if not found:
            state = "no such file" if os.path.isdir(folder) else "no such folder"
            meant = advice_on_path(folder, "")
            raise DataError(
                f"data_dir: must be a folder with *.tfrecord* files. Received: {folder!r}, "
                f"{state}. {meant or LOOKED_UP} Write them with `cerebras-tf prepare`."
            )
        for path in filter(os.path.isdir, found):
            raise DataError(
                f"{path}: a TFRecord file must not be a folder. Received: a folder with such a "
                "name. Rename it, or add it to data_dir."
            )
        files += found
    return files


def integers(names, length):
    """Returns the layout of records that hold `length` integers under each of `names`."""
    return dict.fromkeys(names, (length, INTEGER))


def check_section(section, files):
    """Compares the folders of `files` with the vocabulary and length of an input section."""
    folders = dict.fromkeys(os.path.dirname(path) for path in files)
    vocab_sizes = {"vocab_size": count_vocabulary(section)}
    vocab_file = getattr(section, "vocab_file", None)
    check_prepared(folders, vocab_sizes, section.max_sequence_length, vocab_file)


def check_files(files, layout, batch_size=1, vocab_size=None):
    """Checks the first record of each file, and small data sets for truncation and for too few.

    Args:
        layout: features each record must have: the number of values and INTEGER or FLOAT, by name.
        batch_size: records there must be at least.
        vocab_size: tokens that the model has; None where it is not known.
    """
    whole = sum(os.path.getsize(path) for path in files) <= WHOLE_CHECK_BYTES
    count = 0
    for path in files:
        check_first_record(path, layout, vocab_size)
        if whole:
            count += check_frames(path)
    if whole and count < batch_size:
        raise DataError(
            f"{os.path.dirname(files[0])}: must contain at least {batch_size} records, one batch. "
            f"Received: {count}. Add records, or lower batch_size."
        )


def check_first_record(path, layout, vocab_size=None):
    """Raises a DataError if the first record of `path` does not fit; see `check_files`."""
    values = read_example(path, read_first_record(path), layout)
    if "input_ids" in layout:
        check_tokens(path, values["input_ids"], vocab_size)


def features_of(path):
    """Returns the names of the features of a file's first record."""
    try:
        return list(decode_example(read_first_record(path)))
    except ValueError:
        return []  # reported by check_files


def read_example(where, record, layout):
    """Reads a record; returns the values of each feature, sequences by name."""
    try:
        features = decode_example(record)
    except ValueError as error:
        raise DataError(
            f"{where}: must be a TFRecord file of tf.train.Example. Received: another record "
            f"({error}). Write the file again."
        ) from error
    found = {}
    for name, (length, kind) in layout.items():
        if name not in features:
            raise DataError(
                f"{where}: each record must have the features {', '.join(layout)}. Received: "
                f"{', '.join(sorted(features)) or 'none'}. Make the file again."
            )
        values = features[name]
        if values.dtype != kind:
            values = np.empty(0, kind)
        found[name] = values
        received = len(values)
        if received != length:
            raise DataError(
                f"{where}: feature {name} must have {length} values of {kind}. Received: "
                f"{received}. Set the key of this length (max_sequence_length for tokens) to that "
                "of the files, or prepare the files again."
            )
    return found


def check_frames(path):
    """Walks over the records of a file without reading them, and returns their number."""
    return len(find_frames(path))


def find_frames(path):
    """Returns the position of every record of a file, [n] int64; reads no record.

    Raises:
        DataError: the file is truncated.
    """
    size, position, found = os.path.getsize(path), 0, []
    if not size:
        raise _truncated(path, 0)
    with open_regular(path) as file:
        while position < size:
            file.seek(position)
            head = file.read(FRAME.size)
            step = FRAME.size + 2 * CHECKSUM_BYTES
            if len(head) == FRAME.size:
                step += FRAME.unpack(head)[0]
            if len(head) < FRAME.size or position + step > size:
                raise _truncated(path, position)
            found.append(position)
            position += step
    return np.array(found, np.int64)


def read_first_record(path):
    """Returns the bytes of the first record of `path`; raises a DataError if it is not whole."""
    with open_regular(path) as file:
        return _read_frame(file, path)


def _read_frame(file, path):
    head = file.read(FRAME.size + CHECKSUM_BYTES)
    if len(head) == FRAME.size + CHECKSUM_BYTES:
        length = FRAME.unpack(head[: FRAME.size])[0]
        if length <= os.path.getsize(path):
            data = file.read(length)
            if len(data) == length:
                return data
    raise _truncated(path, 0)


class Records:
    """The records of files, by their number. No record stays in memory.

    Args:
        layout: see `check_files`.
    """

    def __init__(self, files, layout):
        self._files, self._layout = files, layout
        frames = [find_frames(path) for path in files]
        self._places = np.concatenate(frames)
        self._ends = np.cumsum([len(each) for each in frames])

    def __len__(self):
        return len(self._places)

    def rows(self, numbers):
        """Returns records by their numbers [n]: arrays [n, length] of int64 or float32, by name."""
        rows = [self._row(int(number)) for number in numbers]
        return {name: np.stack([row[name] for row in rows]) for name in self._layout}

    def _row(self, number):
        path = self._files[np.searchsorted(self._ends, number, side="right")]
        with open_regular(path) as file:
            file.seek(self._places[number])
            record = _read_frame(file, path)
        return read_example(f"{path}: record at byte {self._places[number]}", record, self._layout)


def to_int32(array, where):
    """Returns integers as int32; raises a DataError for numbers beyond that."""
    if array.size and not -(1 << 31) <= array.min() <= array.max() < 1 << 31:
        raise DataError(
            f"{where}: must contain numbers of int32. Received: {array.min()} to {array.max()}. "
            "Correct the file."
        )
    return array.astype(np.int32)


def _truncated(path, position):
    size = os.path.getsize(path)
    received = (
        f"{size} bytes, which end within the record at byte {position}" if size else "0 bytes"
    )
    return DataError(
        f"{path}: must be a complete TFRecord file. Received: {received}. Make or copy the file "
        "again."
    )
