"""Tests of modelzoo/common/convert/hugging_face.py and torch_file.py."""

from __future__ import annotations

import json
import math
import re
import sys

import numpy as np
import pytest

from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.installing import install_peers
from modelzoo.common.convert.hugging_face import (
    HuggingFaceReader,
    split_into_shards,
    write_hugging_face,
)
from tests.modelzoo.common.convert.models import random_tensors

SHAPES = {"a": (4, 5), "b": (30,), "c": (2, 2), "d": (3,)}


def write(folder, max_shard_bytes=10**9):
    folder.mkdir(exist_ok=True)
    tensors = random_tensors(SHAPES)
    config = {"model_type": "gpt2"}
    write_hugging_face(folder, config, SHAPES, tensors.items(), 0, "float32", max_shard_bytes)
    return tensors


def same(reader, tensors):
    assert reader.shapes == {name: array.shape for name, array in tensors.items()}
    for name, array in tensors.items():
        np.testing.assert_array_equal(reader.read(name), array)


def refused(folder):
    with pytest.raises(CheckpointError) as caught:
        HuggingFaceReader(folder)
    return str(caught.value)


def test_one_file_is_written_and_read(tmp_path):
    tensors = write(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    reader = HuggingFaceReader(tmp_path)
    same(reader, tensors)
    assert reader.config == {"model_type": "gpt2", "torch_dtype": "float32"}
    assert reader.where("a") == str(tmp_path / "model.safetensors")


def test_several_files_are_written_with_an_index_and_read(tmp_path):
    tensors = write(tmp_path, max_shard_bytes=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(math.prod(s) for s in SHAPES.values()) * 4}
    assert len(set(index["weight_map"].values())) == 3
    same(HuggingFaceReader(tmp_path), tensors)


@pytest.mark.parametrize("limit", [1, 17, 100, 1000])
def test_shards_keep_all_tensors_in_order_within_the_limit(limit):
    shards = split_into_shards(SHAPES, 4, limit)
    assert {k: v for shard in shards for k, v in shard.items()} == SHAPES
    assert [name for shard in shards for name in shard] == list(SHAPES)
    for shard in shards:
        assert len(shard) == 1 or sum(4 * math.prod(s) for s in shard.values()) <= limit


def test_missing_shard_is_refused_by_its_name(tmp_path):
    write(tmp_path, max_shard_bytes=100)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: must be a file that can be read" in refused(tmp_path)


def test_shard_without_a_tensor_of_the_index_is_refused(tmp_path):
    write(tmp_path, max_shard_bytes=100)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["e"] = index["weight_map"]["a"]
    path.write_text(json.dumps(index))
    assert "model-00001-of-00003.safetensors: must hold the tensor e" in refused(tmp_path)


def test_folder_without_tensors_or_configuration_is_refused(tmp_path):
    told = refused(tmp_path)
    assert "config.json: must be a JSON file. Received: No such file or directory. " in told
    (tmp_path / "config.json").write_text("{}")
    assert "must hold model.safetensors" in refused(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "config.json: must hold an object" in refused(tmp_path)


def torch_module():
    return pytest.importorskip("torch", reason="torch is a test extra")


@pytest.mark.parametrize("zipped", [True, False])
def test_bin_files_of_pytorch_are_read(tmp_path, zipped):
    torch = torch_module()
    tensors = random_tensors(SHAPES)
    stored = {name: torch.from_numpy(x) for name, x in tensors.items()}
    path = tmp_path / "pytorch_model.bin"
    torch.save(stored, path, _use_new_zipfile_serialization=zipped)
    (tmp_path / "config.json").write_text("{}")
    same(HuggingFaceReader(tmp_path), tensors)


class RunsWhenLoaded:
    """Its pickle calls a function of the author's choice."""

    def __reduce__(self):
        return (print, ("code of the file runs",))


def test_bin_file_that_holds_code_is_refused_and_not_run(tmp_path, capsys):
    torch = torch_module()
    torch.save({"a": RunsWhenLoaded()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    assert "pytorch_model.bin: must be a whole PyTorch file of weights" in refused(tmp_path)
    assert "code of the file runs" not in capsys.readouterr().out


def test_truncated_bin_file_is_refused(tmp_path):
    torch = torch_module()
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:-500])
    (tmp_path / "config.json").write_text("{}")
    assert "pytorch_model.bin: must be a whole PyTorch file of weights" in refused(tmp_path)


def test_bin_file_without_pytorch_names_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    monkeypatch.setitem(sys.modules, "torch", None)
    command = re.escape(install_peers())
    with pytest.raises(ConfigError, match=f"model.bin: needs PyTorch.* Run `{command}`, or"):
        HuggingFaceReader(tmp_path)
