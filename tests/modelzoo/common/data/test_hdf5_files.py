"""Tests of HDF5 input: what the preparation writes is what a model reads, at any step."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("h5py", reason="HDF5 files need h5py")

from cerebras_tf.errors import DataError
from modelzoo.common.config.input_sections import GptHdf5Input
from modelzoo.common.data.gpt import GptHDF5DataProcessor
from modelzoo.common.data.hdf5_files import Hdf5Records, Hdf5Writer

LENGTH = 3


@pytest.fixture
def folder(tmp_path):
    """Two files with the records 0 to 9; record n holds n, all real tokens but the last."""
    writer = Hdf5Writer(tmp_path, "examples", 6)
    for number in range(10):
        ids = np.full(LENGTH, number)
        mask = np.array([1, 1, 0])
        writer.write({"input_ids": ids, "input_mask": mask, "labels": ids + 100})
    writer.close()
    return str(tmp_path)


def section(folder, **keys):
    given = {"max_sequence_length": LENGTH, "batch_size": 4, "vocab_size": 200, **keys}
    return GptHdf5Input("GptHDF5DataProcessor", folder, **given)


def read(settings, batches, skip=0, training=True):
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = GptHDF5DataProcessor(settings).create_dataset(training, skip)
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        return [session.run(batch) for _ in range(batches)]


def first_ids(batches):
    return [features["input_ids"][:, 0].tolist() for features, _ in batches]


def test_unshuffled_records_come_in_the_order_of_the_files(folder):
    batches = read(section(folder, shuffle=False, repeat=False), 3, training=False)
    assert first_ids(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    features, labels = batches[0]
    assert labels[:, 0].tolist() == [100, 101, 102, 103]
    assert features["input_mask"].tolist() == [[0, 0, 1]] * 4


def test_shuffled_stream_goes_on_after_a_restart_and_differs_between_epochs(folder):
    whole = first_ids(read(section(folder, shuffle_seed=3), 6))
    assert first_ids(read(section(folder, shuffle_seed=3), 3, skip=3)) == whole[3:]
    epochs = [sorted(sum(whole[start : start + 2], [])) for start in (0, 2)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert whole[:2] != whole[2:4]


def test_truncated_file_is_named(folder, tmp_path):
    path = sorted(tmp_path.glob("*.h5"))[0]
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=f"{path.name}: must be a whole HDF5 file"):
        Hdf5Records(folder, LENGTH)


def test_other_length_and_empty_folder_are_named(folder, tmp_path):
    with pytest.raises(DataError, match=r"must be \[records, 3, 4\]. Received: \[6, 3, 3\]"):
        Hdf5Records(folder, 4)
    with pytest.raises(DataError, match="without any"):
        Hdf5Records(str(tmp_path / "absent"), LENGTH)


def test_too_few_records_for_a_batch_are_counted(folder):
    with pytest.raises(DataError, match="at least 11 records, one batch. Received: 10"):
        read(section(folder, batch_size=11), 1)


@pytest.mark.parametrize("number", [2, -1])
def test_a_wrong_mask_ends_reading(folder, tmp_path, number):
    writer = Hdf5Writer(tmp_path, "more", 6)
    row = np.arange(LENGTH)
    writer.write({"input_ids": row, "input_mask": np.array([1, number, 0]), "labels": row})
    writer.close()
    settings = section(folder, shuffle=False, repeat=False)
    assert read(settings, 2, training=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="input_mask must hold 0 and 1"):
        read(settings, 3, training=False)
