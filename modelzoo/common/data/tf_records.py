"""Reads fixed-length TFRecords as a resumable stream. Files are checked before training.

Order of the pipeline: list files, shard, interleave, shuffle, batch, repeat, skip, parse, prefetch.
"""

import tensorflow.compat.v1 as tf

from cerebras_tf.api import job
from cerebras_tf.errors import DataError
from modelzoo.common.config.model_sections import count_vocabulary
from modelzoo.common.data.record_files import (
    CHECKSUM_BYTES,
    FLOAT,
    FRAME,
    MASK,
    check_files,
    check_frames,
    check_section,
    find_record_files,
)

UNSIGNED = {tf.int32: tf.uint32, tf.int64: tf.uint64}


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
    settings = job.cluster()
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

    It fails for an input_mask of other numbers than 0 and 1, which would fail no step, and for
    integers beyond int32.

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
                name: to_int32(value, name) if value.dtype == tf.int64 else value
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


def to_int32(numbers, name):
    """Returns int64 numbers as int32; running it fails for numbers beyond that."""
    half = 1 << 31
    largest = tf.reduce_max(tf.bitcast(numbers + half, tf.uint64))
    data = [f"{name} must contain numbers of int32, not", tf.bitcast(largest, tf.int64) - half]
    check = tf.raw_ops.Assert(condition=largest < 2 * half, data=data)
    with tf.control_dependencies([check]):
        return tf.cast(numbers, tf.int32)


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
