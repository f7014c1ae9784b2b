"""TensorFlow checkpoints are read, written and renumbered."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.bundle import writer
from cerebras_tf.errors import CheckpointError
from modelzoo.common.convert.tensorflow_checkpoint import (
    TensorFlowReader,
    renumber,
    write_tensorflow,
)
from modelzoo.common.model_dir.resume import checkpoint_step
from tests.modelzoo.common.convert.models import random_tensors

SHAPES = {"a/kernel": (4, 5), "b": (30,), "c": ()}


@pytest.mark.parametrize("file_bytes, shards", [(1, 4), (10**6, 1)])
def test_tensorflow_reads_what_is_written(tmp_path, file_bytes, shards, monkeypatch):
    monkeypatch.setattr(writer, "FILE_BYTES", file_bytes)
    tensors = random_tensors(SHAPES)
    write_tensorflow(tmp_path, "model.ckpt-7", iter(tensors.items()), 7)
    prefix = tf.train.latest_checkpoint(str(tmp_path))
    assert prefix == str(tmp_path / "model.ckpt-7")
    assert len(list(tmp_path.glob("model.ckpt-7.data-*"))) == shards
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_tensor("global_step") == 7
    assert reader.get_tensor("global_step").dtype == np.int64
    for name, array in tensors.items():
        np.testing.assert_array_equal(reader.get_tensor(name), array)


def test_checkpoint_is_found_after_its_folder_is_moved(tmp_path):
    (tmp_path / "old").mkdir()
    write_tensorflow(tmp_path / "old", "model.ckpt-0", iter(random_tensors(SHAPES).items()))
    (tmp_path / "old").rename(tmp_path / "new")
    assert TensorFlowReader(tmp_path / "new").path == str(tmp_path / "new" / "model.ckpt-0")


def test_reader_finds_the_only_checkpoint_of_a_folder_without_a_record(tmp_path):
    write_tensorflow(tmp_path, "bert_model.ckpt", iter(random_tensors(SHAPES).items()))
    (tmp_path / "checkpoint").unlink()
    reader = TensorFlowReader(tmp_path)
    assert reader.path == str(tmp_path / "bert_model.ckpt")
    assert reader.shapes == {**SHAPES, "global_step": ()}
    write_tensorflow(tmp_path, "other.ckpt", iter(random_tensors(SHAPES).items()))
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(CheckpointError, match="Received: 2 files"):
        TensorFlowReader(tmp_path)


def test_missing_and_truncated_checkpoints_are_refused_with_their_path(tmp_path):
    with pytest.raises(CheckpointError, match=r"model.ckpt-1: must be a whole TensorFlow"):
        TensorFlowReader(tmp_path / "model.ckpt-1")
    write_tensorflow(tmp_path, "model.ckpt-2", iter(random_tensors(SHAPES).items()))
    data = next(tmp_path.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:8])
    with pytest.raises(CheckpointError, match=r"model.ckpt-2, variable b: .*Received: "):
        TensorFlowReader(tmp_path).read("b")


def test_a_variable_whose_bytes_are_others_is_told_with_the_checkpoint_before(tmp_path):
    for step in (1, 2):
        tensors = random_tensors(SHAPES)
        write_tensorflow(tmp_path, f"model.ckpt-{step}", iter(tensors.items()), step)
    for step, advice in ((1, "no earlier one is there"), (2, "or name the one before, .*ckpt-1")):
        path = tmp_path / f"model.ckpt-{step}.data-00000-of-00001"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        reader = TensorFlowReader(tmp_path / f"model.ckpt-{step}")
        says = rf"ckpt-{step}, variable \S+: must be whole. .*Checksum.*\d\. Restore the files; "
        says += rf"{advice}\."
        with pytest.raises(CheckpointError, match=says):
            for name in SHAPES:
                reader.read(name)


def test_copy_has_every_variable_and_another_step(tmp_path):
    (tmp_path / "first").mkdir()
    tensors = {
        "layer/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "layer/kernel/AdamW": np.ones((2, 3), np.float32),
        "accum_step_counter": np.asarray(0, np.int32),
        "cerebras_tf/random_step": np.asarray(7, np.int64),
    }
    write_tensorflow(tmp_path / "first", "model.ckpt-57", iter(tensors.items()), 57)
    path = renumber(tmp_path / "first", tmp_path / "second", 38)
    assert path == str(tmp_path / "second" / "model.ckpt-38")
    assert checkpoint_step(str(tmp_path / "second")) == 38
    found = TensorFlowReader(path)
    assert set(found.shapes) == {*tensors, "global_step"}
    for name, array in tensors.items():
        np.testing.assert_array_equal(found.read(name), array, name)
        assert found.read(name).dtype == array.dtype
    with pytest.raises(CheckpointError, match="must hold no checkpoint yet"):
        renumber(tmp_path / "first", tmp_path / "second", 39)
    renumber(tmp_path / "first", tmp_path / "second", 39, overwrite=True)
    assert checkpoint_step(str(tmp_path / "second")) == 39
    assert not list((tmp_path / "second").glob("model.ckpt-38*"))


def test_a_file_of_the_checkpoint_names_it_and_one_without_variables_is_refused(tmp_path):
    write_tensorflow(tmp_path, "model.ckpt-6", iter({"kernel": np.ones(3)}.items()), 6)
    path = renumber(tmp_path / "model.ckpt-6.index", tmp_path / "out", 7)
    assert set(TensorFlowReader(path).shapes) == {"kernel", "global_step"}
    (tmp_path / "copy").write_bytes((tmp_path / "model.ckpt-6.index").read_bytes())
    with pytest.raises(CheckpointError, match="copy: must hold variables. Received: none"):
        renumber(tmp_path / "copy", tmp_path / "other", 7)
    assert not list((tmp_path / "other").glob("*"))
