"""Reads fixed-length TFRecords as a resumable stream. Files are checked before training.

Order of the pipeline: list files, shard, interleave, shuffle, batch, repeat, skip, parse, prefetch.
"""

import glob
import os
import struct

import tensorflow.compat.v1 as tf

from cerebras_tf.environment import TF_CONFIG
from cerebras_tf.errors import DataError
from modelzoo.common.config.model_sections import count_vocabulary
from modelzoo.common.data.prepared import check_prepared, check_tokens
from modelzoo.common.files.path_advice import LOOKED_UP, advice_on_path

INTEGER, FLOAT = "int64", "float32"  # kinds of a column
MASK = "input_mask"
UNSIGNED = {tf.int32: tf.uint32, tf.int64: tf.uint64}
FRAME = struct.Struct("<Q")  # a record: its length, 4 bytes of checksum, data, 4 bytes of checksum
CHECKSUM_BYTES = 4
WHOLE_CHECK_BYTES = 1 << 30  # data sets up to this size are checked for truncation beforehand


def find_record_files(data_dir):
    """Lists the files ``*.tfrecord*`` of a folder or a list of folders, sorted."""
    folders = [data_dir] if isinstance(data_dir, str) else list(data_dir)
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


def read_example(where, record, layout):
    """Reads a record; returns the values of each feature, sequences by name."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's own error type differs between its implementations
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
        values = features[name].int64_list if kind == INTEGER else features[name].float_list
        found[name] = values.value
        received = len(values.value)
        if received != length:
            raise DataError(
                f"{where}: feature {name} must have {length} values of {kind}. Received: "
                f"{received}. Set the key of this length (max_sequence_length for tokens) to that "
                "of the files, or prepare the files again."
            )
    return found


def check_frames(path):
    """Walks over the records of a file without reading them, and returns their number."""
    size, position, count = os.path.getsize(path), 0, 0
    if not size:
        raise _truncated(path, 0)
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            head = file.read(FRAME.size)
            step = FRAME.size + 2 * CHECKSUM_BYTES
            if len(head) == FRAME.size:
                step += FRAME.unpack(head)[0]
            if len(head) < FRAME.size or position + step > size:
                raise _truncated(path, position)
            position, count = position + step, count + 1
    return count


def read_first_record(path):
    """Returns the bytes of the first record of `path`; raises a DataError if it is not whole."""
    with open(path, "rb") as file:
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


def _truncated(path, position):
    size = os.path.getsize(path)
    received = (
        f"{size} bytes, which end within the record at byte {position}" if size else "0 bytes"
    )
    return DataError(
        f"{path}: must be a complete TFRecord file. Received: {received}. Make or copy the file "
        "again."
    )


def find_damage(data_dir):
    """Returns a sentence naming the first damaged record of `data_dir`, or None.

    Reads all files, checksums included, up to the damage.
    """
    for path in find_record_files(data_dir):
        position = 0
        try:
            check_frames(path)
            for record in tf.io.tf_record_iterator(path):
                position += FRAME.size + 2 * CHECKSUM_BYTES + len(record)
        except DataError as error:
            return str(error)
        except tf.errors.DataLossError:
            return (
                f"{path}: must be a complete TFRecord file. Received: the record at byte "
                f"{position} fails its checksum. Make or copy the file again."
            )
    return None


def worker_position():
    """Returns (number of workers, index) by the environment variable TF_CONFIG."""
    settings = TF_CONFIG.get()
    workers = settings.get("cluster", {}).get("worker", [None])
    return len(workers), settings.get("task", {}).get("index", 0)


def record_batches(section, files, skip, keep_remainder=False, group=None):
    """Makes the stream of batches of serialized records.

    The order is a function of the section's `shuffle_seed` (None counts as 0) and the epoch.

    Args:
        section: input section with batch_size, shuffle, shuffle_seed, shuffle_buffer, repeat,
            n_parallel_reads and use_multiple_workers.
        keep_remainder: whether records that do not fill a batch make a smaller one at the end.
        group: makes batches out of the dataset of records, in another way than one after the other.

    Returns:
        A ``tf.data.Dataset`` of [batch_size] strings.
    """
    workers, index = worker_position() if section.use_multiple_workers else (1, 0)
    if len(files) < workers:
        raise DataError(
            f"data_dir: must contain a file for each of the {workers} workers. Received: "
            f"{len(files)}. Make more files, or set use_multiple_workers to False."
        )
    files = files[index::workers]
    seed = section.shuffle_seed or 0
    dataset = tf.data.Dataset.from_tensor_slices(files)
    if section.shuffle:
        dataset = dataset.shuffle(len(files), seed=seed, reshuffle_each_iteration=True)
    reads = min(section.n_parallel_reads, len(files))
    dataset = dataset.interleave(
        tf.data.TFRecordDataset, cycle_length=reads, num_parallel_calls=reads, deterministic=True
    )
    if section.shuffle:
        buffer = section.shuffle_buffer or 10 * section.batch_size
        dataset = dataset.shuffle(buffer, seed=seed, reshuffle_each_iteration=True)
    if group is None:
        dataset = dataset.batch(section.batch_size, drop_remainder=not keep_remainder)
    else:
        dataset = group(dataset)
    if section.repeat:
        dataset = dataset.repeat()
    return dataset.skip(skip) if skip else dataset


def parse_records(layout):
    """Makes a function from [B] serialized records to a dictionary of [B, length] tensors.

    It fails for an input_mask of other numbers than 0 and 1, which would fail no step.

    Args:
        layout: see `check_files`; integers become int32, floats stay float32.
    """
    columns = {
        name: tf.io.FixedLenFeature([length], tf.as_dtype(kind))
        for name, (length, kind) in layout.items()
    }

    def parse(records):
        parsed = tf.io.parse_example(records, columns)
        with tf.control_dependencies([check_mask(parsed[MASK])] if MASK in parsed else []):
            return {
                name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
                for name, value in parsed.items()
            }

    return parse


def check_mask(numbers):
    """Returns an operation that fails where one of some int32 or int64 numbers is not 0 or 1.

    Negative ones are read as large ones: one look at the largest costs less than two at all.
    """
    largest = tf.reduce_max(tf.bitcast(numbers, UNSIGNED[numbers.dtype]))
    data = ["input_mask must contain 0 and 1 alone, not", largest]
    return tf.raw_ops.Assert(condition=largest <= 1, data=data)


def read_batches(section, layout, skip, keep_remainder=False, group=None, files=None):
    """Checks the files of an input section and makes the stream of its parsed batches.

    Args:
        section: input section with `data_dir` and what `record_batches` needs.
        keep_remainder: whether the last batch may be smaller than the others.
        files: paths; those of `data_dir` where None.

    Returns:
        A ``tf.data.Dataset`` of dictionaries, see `parse_records`.
    """
    files = files or find_record_files(section.data_dir)
    check_section(section, files)
    check_files(
        files, layout, 1 if keep_remainder else section.batch_size, count_vocabulary(section)
    )
    dataset = record_batches(section, files, skip, keep_remainder, group)
    return dataset.map(parse_records(layout), num_parallel_calls=2, deterministic=True)


class RecordProcessor:
    """What data processors share that read records of `layout`."""

    predicts_records = True  # prediction reads records, too

    def __init__(self, section):
        self.section = section

    def layout(self, predicting=False):
        """Returns the layout of a record; see `check_files`."""
        raise NotImplementedError

    def files(self):
        """Returns the paths of the records."""
        return find_record_files(self.section.data_dir)

    def blank_records(self):
        """Returns a batch of records that hold zeros: tensors by name."""
        size = self.section.batch_size
        return {
            name: tf.zeros([size, length], tf.float32 if kind == FLOAT else tf.int32)
            for name, (length, kind) in self.layout().items()
        }
