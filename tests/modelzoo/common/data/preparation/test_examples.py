"""Tests of examples.py: what is written by hand is what TensorFlow's own classes read."""

from __future__ import annotations

import numpy as np
import pytest

from modelzoo.common.data.preparation import examples

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

EDGES = [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**28 - 1, 2**28, 2**31, 2**62, -1, -(2**63)]


def parse(features):
    return tf.train.Example.FromString(examples.encode_example(features)).features.feature


def test_integers_of_every_length_and_sign_are_read_back():
    assert list(parse({"x": np.array(EDGES)})["x"].int64_list.value) == EDGES


@pytest.mark.parametrize("top", [1, 2**7, 2**14, 2**21, 2**28, 2**35, 2**63])
def test_random_integers_below_each_size_are_read_back(top):
    values = np.random.default_rng(0).integers(0, top, 300, dtype=np.uint64).astype(np.int64)
    assert list(parse({"x": values})["x"].int64_list.value) == values.tolist()


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


def test_empty_integers_are_read_as_no_values():
    assert len(parse({"x": np.zeros(0, np.int64)})["x"].int64_list.value) == 0


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


def test_feature_of_no_known_kind_is_refused():
    with pytest.raises(TypeError, match="must hold integers.*Received: 'text'"):
        examples.encode_example({"x": "text"})
