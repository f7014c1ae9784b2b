"""How checkpoints are read and found."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.checkpoints.reader import CheckpointReader, open_checkpoint
from cerebras_tf.errors import CheckpointError
from tests.messages import raises

pytestmark = pytest.mark.tf


def write_checkpoints(folder, steps):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("dense/kernel", initializer=[[1.0, 2.0]])
        tf.compat.v1.get_variable("bias", initializer=[3.0])
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(max_to_keep=None)
        return [saver.save(session, str(folder / "model.ckpt"), step) for step in steps]


def test_reader_reads_a_checkpoint(tmp_path):
    (path,) = write_checkpoints(tmp_path, [5])
    for weights in (CheckpointReader(path), CheckpointReader(str(tmp_path))):
        assert weights.var_names == ["bias", "dense/kernel"]
        assert "bias" in weights
        assert "absent" not in weights
        np.testing.assert_array_equal(weights["dense/kernel"], [[1.0, 2.0]])
        assert {name: array.tolist() for name, array in weights} == {
            "bias": [3.0],
            "dense/kernel": [[1.0, 2.0]],
        }
        with pytest.raises(KeyError):
            weights["absent"]


def test_reader_of_no_checkpoint_names_the_path(tmp_path):
    write_checkpoints(tmp_path, [5])
    for name in ("model.ckpt-1", "model.ckpt-5.index"):  # TensorFlow opens the index as empty
        for read in (CheckpointReader, open_checkpoint):
            with raises(CheckpointError, str(tmp_path / name)):
                read(str(tmp_path / name))


def test_reader_finds_complete_checkpoints_in_order_of_steps(tmp_path):
    paths = write_checkpoints(tmp_path, [5, 100, 20, 7])
    (tmp_path / "model.ckpt-5.data-00000-of-00003").touch()  # of no checkpoint
    (tmp_path / "model.ckpt-20.data-00000-of-00001").unlink()
    index = tmp_path / "model.ckpt-7.index"
    index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
    complete = [CheckpointReader.is_a_checkpoint(path) for path in [*paths, str(tmp_path)]]
    assert complete == [True, True, False, False, False]
    assert CheckpointReader.all_checkpoints(str(tmp_path)) == paths[:2]
    assert CheckpointReader.all_checkpoints(str(tmp_path / "absent")) == []
