"""Tests of modelzoo/common/convert/renumber.py."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

from cerebras_tf.errors import CheckpointError
from modelzoo.common.convert.renumber import renumber
from modelzoo.common.convert.tensorflow_checkpoint import TensorFlowReader, write_tensorflow
from modelzoo.common.model_dir.resume import checkpoint_step


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
