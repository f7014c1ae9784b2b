"""Tests of records.py: files appear whole, in parts of the size asked for, with their sums."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation import records

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")


def test_files_are_divided_and_described(tmp_path):
    writer = records.RecordWriter(tmp_path, "part", records_per_file=2)
    for number in range(5):
        writer.write({"x": np.array([number]), "w": np.float32([0.5])})
    writer.close()
    assert [entry["records"] for entry in writer.files] == [2, 2, 1]
    read = []
    for entry in writer.files:
        data = (tmp_path / entry["file"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
        for record in tf.io.tf_record_iterator(str(tmp_path / entry["file"])):
            read += tf.train.Example.FromString(record).features.feature["x"].int64_list.value
    assert read == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [0, 1, records.ENDS_BYTES + 1, 3 * records.ENDS_BYTES])
def test_both_ends_of_a_file_tell_it_from_another_of_its_size(tmp_path, size):
    path, content = tmp_path / "a", bytearray(range(251)) * (size // 251 + 1)
    content = content[:size]
    path.write_bytes(content)
    found = records.ends_sha256(path)
    ends = content[: records.ENDS_BYTES] + content[records.ENDS_BYTES :][-records.ENDS_BYTES :]
    assert found == hashlib.sha256(ends).hexdigest()
    for place in {0, size - 1} if size else ():
        content[place] ^= 1
        path.write_bytes(content)
        assert records.ends_sha256(path) != found
        content[place] ^= 1


def test_unfinished_file_has_no_final_name(tmp_path):
    writer = records.RecordWriter(tmp_path, "part")
    writer.write({"x": np.array([1])})
    assert list(tmp_path.glob("*.tfrecords")) == []
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.tfrecords"]


def test_sequences_are_written(tmp_path):
    writer = records.RecordWriter(tmp_path, "part")
    writer.write_sequence({"tokens": [b"a", b"b"]})
    writer.close()
    (record,) = tf.io.tf_record_iterator(str(tmp_path / writer.files[0]["file"]))
    steps = tf.train.SequenceExample.FromString(record).feature_lists.feature_list["tokens"].feature
    assert [step.bytes_list.value[0] for step in steps] == [b"a", b"b"]


def test_progress_refuses_other_settings_and_names_them(tmp_path):
    records.Progress(tmp_path, {"a": 1, "b": 2})
    records.Progress(tmp_path, {"a": 1, "b": 2}).mark(0, {"counts": {}, "files": []})
    with pytest.raises(ConfigError, match="made with another a and c"):
        records.Progress(tmp_path, {"a": 2, "b": 2, "c": 3})


@pytest.mark.parametrize("content", ["{oops", "[1]", '{"settings": 3}'])
def test_a_manifest_that_is_none_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="manifest.json: must be what a preparation wrote. Rec"):
        records.Progress(tmp_path, {"a": 1})


def test_a_folder_takes_one_preparation_at_a_time(tmp_path):
    folder = tmp_path / "made"
    with (
        records.in_use(folder),
        pytest.raises(ConfigError, match="must not be in use by another preparation"),
        records.in_use(folder),
    ):
        pass
    with records.in_use(folder):
        assert not list(folder.iterdir())
