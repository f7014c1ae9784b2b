"""Records are what TensorFlow reads; files appear whole, with their sums."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.data.preparation import examples, record_stream, records
from tests.messages import raises
from tests.reading import records_of


def test_files_are_divided_and_described(tmp_path):
    writer = records.RecordWriter(tmp_path, "part", records_per_file=2)
    for number in range(5):
        writer.write({"x": np.array([number]), "w": np.float32([0.5])})
    writer.close()
    assert [entry["records"] for entry in writer.files] == [2, 2, 1]
    for entry in writer.files:
        data = (tmp_path / entry["file"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
    assert [record["x"] for record in records_of(tmp_path)] == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("size", [0, 1, records.ENDS_BYTES + 1, 3 * records.ENDS_BYTES])
def test_both_ends_of_a_file_distinguish_it_from_another_of_its_size(tmp_path, size):
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


def test_progress_refuses_other_settings_and_names_them(tmp_path):
    records.Progress(tmp_path, {"a": 1, "b": 2})
    records.Progress(tmp_path, {"a": 1, "b": 2}).mark(0, {"counts": {}, "files": []})
    with raises(ConfigError, "a and c"):
        records.Progress(tmp_path, {"a": 2, "b": 2, "c": 3})


@pytest.mark.parametrize("content", ["{oops", "[1]", '{"settings": 3}'])
def test_a_manifest_that_is_none_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with raises(DataError, "manifest.json"):
        records.Progress(tmp_path, {"a": 1})


def test_a_folder_takes_one_preparation_at_a_time(tmp_path):
    folder = tmp_path / "made"
    with records.in_use(folder), raises(ConfigError, "in use"), records.in_use(folder):
        pass
    with records.in_use(folder):
        assert not list(folder.iterdir())


EDGES = [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**28 - 1, 2**28, 2**31, 2**62, -1, -(2**63)]


def parse(features):
    return tf.train.Example.FromString(examples.encode_example(features)).features.feature


def test_integers_of_every_length_and_sign_are_read_back():
    assert list(parse({"x": np.array(EDGES)})["x"].int64_list.value) == EDGES


def test_floating_point_numbers_are_stored_as_float32():
    values = np.random.default_rng(0).normal(size=20)
    read = parse({"x": values, "y": np.float16([0.5])})
    assert read["x"].float_list.value == values.astype(np.float32).tolist()
    assert list(read["y"].float_list.value) == [0.5]


def test_bytes_and_lists_of_bytes_are_read_back():
    read = parse({"one": b"a\x00b", "more": [b"", b"\xff" * 300]})
    assert list(read["one"].bytes_list.value) == [b"a\x00b"]
    assert list(read["more"].bytes_list.value) == [b"", b"\xff" * 300]


def test_example_equals_that_of_tensorflow_byte_by_byte():
    ids = np.arange(1000)
    theirs = tf.train.Example()
    theirs.features.feature["ids"].int64_list.value.extend(ids.tolist())
    assert examples.encode_example({"ids": ids}) == theirs.SerializeToString()


def test_sequence_example_is_parsed_by_tensorflow():
    data = examples.encode_sequence_example({"tokens": [b"a", b"bc"]}, {"length": np.array([2])})
    with tf.Graph().as_default(), tf.Session() as session:
        context, lists = tf.io.parse_single_sequence_example(
            data,
            {"length": tf.io.FixedLenFeature([1], tf.int64)},
            {"tokens": tf.io.FixedLenSequenceFeature([], tf.string)},
        )
        read = session.run((context["length"], lists["tokens"]))
    assert read[0].tolist() == [2] and read[1].tolist() == [b"a", b"bc"]


def test_decoded_examples_are_what_tensorflow_wrote():
    numbers = [0, 1, 127, 128, 300, -1, 2**62, -(2**63)]
    features = {
        "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=numbers)),
        "weights": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, -2.0])),
        "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a", b""])),
        "none": tf.train.Feature(),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    record = example.SerializeToString()
    found = examples.decode_example(record)
    assert found["ids"].tolist() == numbers and found["ids"].dtype == np.int64
    assert found["weights"].tolist() == [0.5, -2.0] and found["weights"].dtype == np.float32
    assert found["text"] == [b"a", b""] and len(found["none"]) == 0


@pytest.mark.parametrize("record", [b"\x0a\x05\x0a", b"\xff" * 12, b"not a message"])
def test_other_records_are_no_examples(record):
    with pytest.raises(ValueError):
        examples.decode_example(record)


def test_record_stream_writes_the_bytes_that_tensorflow_writes(tmp_path):
    rows = [b"", b"123456789", bytes(range(256)) * 5]
    paths = tmp_path / "ours", tmp_path / "theirs"
    for writer in (record_stream.RecordStream(paths[0]), tf.io.TFRecordWriter(str(paths[1]))):
        for row in rows:
            writer.write(row)
        writer.close()
    assert paths[0].read_bytes() == paths[1].read_bytes()
