"""Tests of modelzoo/common/convert/safetensors_file.py, against the format's own library."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from cerebras_tf.errors import CheckpointError
from modelzoo.common.convert.safetensors_file import (
    SafetensorsReader,
    SafetensorsWriter,
    narrow,
    widen,
)
from tests.modelzoo.common.convert.models import random_tensors

SHAPES = {"a.weight": (3, 5), "b": (7,), "scalar": (), "c": (2, 0, 4)}


def library():
    return pytest.importorskip("safetensors.numpy", reason="safetensors is a test extra")


def write(path, tensors, dtype="F32"):
    writer = SafetensorsWriter(path, {name: x.shape for name, x in tensors.items()}, dtype)
    for name, array in tensors.items():
        writer.write(name, array)
    writer.close()


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_library_reads_what_is_written(tmp_path):
    tensors = random_tensors(SHAPES)
    write(tmp_path / "m.safetensors", tensors)
    same(library().load_file(tmp_path / "m.safetensors"), tensors)


def test_written_file_says_that_its_tensors_are_pytorchs(tmp_path):
    write(tmp_path / "m.safetensors", random_tensors(SHAPES))
    library()
    from safetensors import safe_open

    with safe_open(tmp_path / "m.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}


def test_reader_reads_what_the_library_writes(tmp_path):
    tensors = random_tensors(SHAPES)
    library().save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    reader = SafetensorsReader(tmp_path / "m.safetensors")
    same({name: reader.read(name) for name in reader.places}, tensors)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_narrow_types_are_read_exactly_and_written_rounded(tmp_path, dtype):
    tensors = random_tensors(SHAPES)
    write(tmp_path / "m.safetensors", tensors, dtype)
    reader = SafetensorsReader(tmp_path / "m.safetensors")
    once = {name: reader.read(name) for name in reader.places}
    bits = {"F16": 10, "BF16": 7}[dtype]
    for name, array in tensors.items():
        np.testing.assert_allclose(once[name], array, rtol=2.0 ** -(bits + 1))
    write(tmp_path / "again.safetensors", once, dtype)
    again = SafetensorsReader(tmp_path / "again.safetensors")
    same({name: again.read(name) for name in again.places}, once)


def test_bfloat16_rounds_to_even_and_keeps_what_is_no_number():
    halfway = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    special = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    assert narrow(halfway, "BF16").tolist() == [0x3F80, 0x3F82]
    found = widen(narrow(special, "BF16"), "BF16")
    np.testing.assert_array_equal(found, special)
    assert np.signbit(found[3])


def damaged(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        SafetensorsReader(path)
    return str(caught.value)


def content_of(tmp_path):
    write(tmp_path / "whole.safetensors", random_tensors(SHAPES))
    return (tmp_path / "whole.safetensors").read_bytes()


def test_truncated_data_are_refused_with_file_and_tensor(tmp_path):
    text = damaged(tmp_path / "cut.safetensors", content_of(tmp_path)[:-4])
    assert "cut.safetensors: must be a whole .safetensors file" in text
    assert "tensor scalar ends at" in text


@pytest.mark.parametrize("length", [0, 7, 8, 40])
def test_truncated_header_is_refused(tmp_path, length):
    text = damaged(tmp_path / "cut.safetensors", content_of(tmp_path)[:length])
    assert f"cut.safetensors: must be a whole .safetensors file. Received: {length} bytes" in text


@pytest.mark.parametrize(
    "header",
    [b"no json", b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1]}}'],
    ids=lambda header: header.decode(),
)
def test_header_that_is_none_is_refused(tmp_path, header):
    content = struct.pack("<Q", len(header)) + header
    assert "cannot be understood" in damaged(tmp_path / "m.safetensors", content)


def test_tensor_whose_bytes_do_not_fit_its_shape_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    content = struct.pack("<Q", len(header)) + header + b"\0" * 4
    text = damaged(tmp_path / "m.safetensors", content)
    assert "tensor a of 4 bytes instead of 8" in text


def test_type_that_is_no_weights_is_refused_when_read(tmp_path):
    library().save_file({"a": np.zeros(2, np.int64)}, tmp_path / "m.safetensors")
    reader = SafetensorsReader(tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="tensor a must be of type F32, F16, BF16.*I64"):
        reader.read("a")
