"""Tests of tf_records.py and resume.py: bad files are named, streams go on where they stopped."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import DataError
from modelzoo.common.config.input_sections import GptTfRecordsInput
from modelzoo.common.config.params import resolve_path
from modelzoo.common.config.sections import RunConfigParams
from modelzoo.common.data import tf_records
from modelzoo.common.model_dir import resume
from tests.messages import names

NAMES = ("input_ids", "labels")
LENGTH = 3
LAYOUT = tf_records.integers(NAMES, LENGTH)


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
    return tf_records.find_record_files(str(tmp_path))


def test_an_empty_file_and_a_folder_are_no_records(files, tmp_path):
    (tmp_path / "a-1.tfrecords").write_bytes(b"")
    with pytest.raises(DataError, match=r"a-1\.tfrecords: must be a whole.*Received: 0 bytes\."):
        tf_records.check_files(files, LAYOUT)
    with pytest.raises(DataError, match=r"a-1\.tfrecords: must be a whole"):
        tf_records.check_frames(files[1])
    (tmp_path / "b.tfrecord").mkdir()
    with pytest.raises(DataError, match=r"b\.tfrecord: must be a TFRecord file.*a folder"):
        tf_records.find_record_files(str(tmp_path))


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
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = tf_records.record_batches(settings, files, skip)
        dataset = dataset.map(tf_records.parse_records(LAYOUT))
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        return [session.run(batch)["labels"][:, 0].tolist() for _ in range(batches)]


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
        place = {"cluster": {"worker": ["a", "b", "c"]}, "task": {"index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(place))
        settings = section(use_multiple_workers=True, batch_size=5)
        seen.append(set(sum(read(settings, files, 2), [])))
    assert set.union(*seen) == set(range(30)) and sum(map(len, seen)) == 30


def test_more_workers_than_files_are_refused(files, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a", "b", "c", "d"]}}')
    with pytest.raises(DataError, match="a file for each of the 4 workers. Received: 3"):
        tf_records.record_batches(section(use_multiple_workers=True), files, 0)


def test_a_folder_may_have_the_letters_of_a_glob_in_its_name(tmp_path, monkeypatch):
    folder = tmp_path / "dd[1]"
    folder.mkdir()
    write(folder / "a.tfrecords", [1])
    assert tf_records.find_record_files(str(folder)) == [str(folder / "a.tfrecords")]
    monkeypatch.chdir(tmp_path)
    assert resolve_path("dd[1]", tmp_path / "configs") == str(folder)


def test_empty_and_missing_folders_are_told_apart(tmp_path):
    for folder, fact in ((tmp_path, "no such file"), (tmp_path / "absent", "no such folder")):
        with pytest.raises(DataError) as error:
            tf_records.find_record_files(str(folder))
        assert names(error.value, folder, fact)


def test_records_of_another_length_or_feature_or_none_are_named(files, tmp_path):
    tf_records.check_files(files, LAYOUT)
    write(tmp_path / "b.tfrecords", [1], length=5)
    (tmp_path / "c.tfrecords").write_text("plain text, long enough to look like a record header")
    for path, layout, facts in (
        (tmp_path / "b.tfrecords", LAYOUT, ("3 values of int64", "Received: 5")),
        (files[0], tf_records.integers(("input_ids", "mask"), LENGTH), ("mask", "labels")),
        (tmp_path / "c.tfrecords", LAYOUT, ()),
    ):
        with pytest.raises(DataError) as error:
            tf_records.check_files([str(path)], layout)
        assert names(error.value, path, *facts)


@pytest.mark.parametrize("kept", [5, 20, -1])
def test_truncated_file_is_named(files, kept):
    with open(files[1], "rb") as file:
        data = file.read()
    with open(files[1], "wb") as file:
        file.write(data[:kept])
    with pytest.raises(DataError, match=r"a-1.tfrecords: must be a whole TFRecord file"):
        tf_records.check_files(files, LAYOUT)
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
