"""TFRecords and HDF5: bad files are named, streams continue where they stopped."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("h5py", reason="HDF5 files need h5py")

from cerebras_tf.errors import DataError
from modelzoo.common.config.input_sections import GptHdf5Input, GptTfRecordsInput
from modelzoo.common.config.sections import RunConfigParams
from modelzoo.common.data import record_files, tf_records
from modelzoo.common.data.gpt import GptHDF5DataProcessor
from modelzoo.common.data.hdf5_files import Hdf5Writer
from modelzoo.common.model_dir import resume
from tests.messages import raises
from tests.reading import batches_of

NAMES = ("input_ids", "labels")
LENGTH = 3
LAYOUT = record_files.integers(NAMES, LENGTH)


def write(path, rows, length=LENGTH, names=NAMES):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[row] * length))
            features = tf.train.Features(feature=dict.fromkeys(names, feature))
            writer.write(tf.train.Example(features=features).SerializeToString())


@pytest.fixture
def files(tmp_path):
    for index in range(3):
        write(tmp_path / f"a-{index}.tfrecords", range(10 * index, 10 * index + 10))
    return record_files.find_record_files(str(tmp_path))


def section(**keys):
    given = {
        "data_processor": "GptTfRecordsProcessor",
        "data_dir": "",
        "vocab_size": 100,
        "max_sequence_length": LENGTH,
        "batch_size": 4,
        "shuffle_seed": 7,
        "shuffle_buffer": 8,
    }
    return GptTfRecordsInput(**{**given, **keys})


def read(settings, files, batches, skip=0):
    """Returns the first number of every record of the given count of batches."""

    def make():
        dataset = tf_records.record_batches(settings, files, skip)
        return dataset.map(tf_records.parse_records(LAYOUT))

    return [batch["labels"][:, 0].tolist() for batch in batches_of(make, batches)]


def test_stream_without_shuffle_repeats_all_files_alternately(files):
    batches = read(section(shuffle=False), files, 8)
    assert batches[0] == [0, 10, 20, 1] and batches[7] == batches[0]


def test_shuffled_stream_is_a_function_of_its_seed(files):
    assert read(section(), files, 10) == read(section(), files, 10)
    assert read(section(), files, 10) != read(section(shuffle_seed=8), files, 10)


def test_epochs_are_shuffled_differently_and_hold_the_same_records(files):
    batches = read(section(batch_size=5), files, 12)
    first, second = sum(batches[:6], []), sum(batches[6:], [])
    assert sorted(first) == sorted(second) == list(range(30)) and first != second


@pytest.mark.parametrize("skip", [1, 6, 17])
def test_skipping_gives_the_stream_an_uninterrupted_run_would_see(files, skip):
    whole = read(section(), files, skip + 4)
    assert read(section(), files, 4, skip) == whole[skip:]


def test_workers_read_disjoint_files(files, monkeypatch):
    seen = []
    for index in range(3):
        cluster = {"chief": ["z"], "worker": ["a", "b", "c"]}
        place = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(place))
        settings = section(use_multiple_workers=True, batch_size=5)
        seen.append(set(sum(read(settings, files, 2), [])))
    assert set.union(*seen) == set(range(30)) and sum(map(len, seen)) == 30


def test_empty_and_missing_folders_are_distinguished(tmp_path):
    for folder, fact in ((tmp_path, "no such file"), (tmp_path / "absent", "no such folder")):
        with raises(DataError, folder, fact):
            record_files.find_record_files(str(folder))


def test_records_of_another_length_or_feature_or_none_are_named(files, tmp_path):
    record_files.check_files(files, LAYOUT)
    write(tmp_path / "b.tfrecords", [1], length=5)
    (tmp_path / "c.tfrecords").write_text("plain text, long enough to look like a record header")
    for path, layout, facts in (
        (tmp_path / "b.tfrecords", LAYOUT, ("3 values of int64", "Received: 5")),
        (files[0], record_files.integers(("input_ids", "mask"), LENGTH), ("mask", "labels")),
        (tmp_path / "c.tfrecords", LAYOUT, ()),
    ):
        with raises(DataError, path, *facts):
            record_files.check_files([str(path)], layout)


@pytest.mark.parametrize("kept", [5, 20, -1])
def test_truncated_file_is_named(files, kept):
    with open(files[1], "rb") as file:
        data = file.read()
    with open(files[1], "wb") as file:
        file.write(data[:kept])
    with raises(DataError, "a-1.tfrecords", "TFRecord"):
        record_files.check_files(files, LAYOUT)
    folder = files[1].rsplit("/", 1)[0]
    assert "a-1.tfrecords" in tf_records.find_damage(folder)


def test_resume_skips_what_the_latest_checkpoint_has_seen(tmp_path):
    runconfig = RunConfigParams(model_dir=str(tmp_path))
    fresh = section()
    assert resume.batches_to_skip(fresh, runconfig) == 0
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        session.run(step.initializer)
        session.run(step.assign(12))
        tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), step)
    assert resume.batches_to_skip(fresh, runconfig) == 12
    assert resume.batches_to_skip(fresh, runconfig, batches_per_step=4) == 48
    assert resume.batches_to_skip(dataclasses.replace(fresh, skip_steps=3), runconfig) == 3
    off = dataclasses.replace(runconfig, disable_input_pipeline_ckpt=True)
    assert resume.batches_to_skip(fresh, off) == 0


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


def hdf5_section(folder, **keys):
    given = {"max_sequence_length": LENGTH, "batch_size": 4, "vocab_size": 200, **keys}
    return GptHdf5Input("GptHDF5DataProcessor", folder, **given)


def read_hdf5(settings, batches, skip=0, training=True):
    made = GptHDF5DataProcessor(settings)
    return batches_of(lambda: made.create_dataset(training, skip), batches)


def first_ids(batches):
    return [features["input_ids"][:, 0].tolist() for features, _ in batches]


def test_unshuffled_records_come_in_the_order_of_the_files(folder):
    batches = read_hdf5(hdf5_section(folder, shuffle=False, repeat=False), 3, training=False)
    assert first_ids(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    features, labels = batches[0]
    assert labels[:, 0].tolist() == [100, 101, 102, 103]
    assert features["input_mask"].tolist() == [[0, 0, 1]] * 4


def test_shuffled_stream_resumes_and_differs_between_epochs(folder):
    whole = first_ids(read_hdf5(hdf5_section(folder, shuffle_seed=3), 6))
    assert first_ids(read_hdf5(hdf5_section(folder, shuffle_seed=3), 3, skip=3)) == whole[3:]
    epochs = [sorted(sum(whole[start : start + 2], [])) for start in (0, 2)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert whole[:2] != whole[2:4]


@pytest.mark.parametrize("number", [2, -1])
def test_a_wrong_mask_ends_reading(folder, tmp_path, number):
    writer = Hdf5Writer(tmp_path, "more", 6)
    row = np.arange(LENGTH)
    writer.write({"input_ids": row, "input_mask": np.array([1, number, 0]), "labels": row})
    writer.close()
    settings = hdf5_section(folder, shuffle=False, repeat=False)
    assert read_hdf5(settings, 2, training=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="input_mask must contain 0 and 1"):
        read_hdf5(settings, 3, training=False)
