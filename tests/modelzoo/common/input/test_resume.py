"""Tests of resume.py: where the data goes on, whichever batches steps had before."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow").compat.v1

from cerebras_tf.errors import CheckpointError, DataError  # noqa: E402
from cerebras_tf.estimator.checkpoint_writer import write_checkpoint  # noqa: E402
from modelzoo.common.input import resume  # noqa: E402


def remember(folder, *changes):
    for step, rate in changes:
        resume.remember_position(str(folder), step, rate)
    return json.loads((folder / "data_position.json").read_text())


def test_batches_are_added_up_over_changes_of_their_number(tmp_path):
    history = remember(tmp_path, (0, 4), (10, 4), (20, 6), (30, 6), (40, 1))
    assert history == [[0, 0, 4], [20, 80, 6], [40, 200, 1]]
    assert resume.read_history(str(tmp_path)) == history
    for step, batches in ((0, 0), (7, 28), (20, 80), (21, 86), (40, 200), (45, 205)):
        assert resume.batches_by(step, history, 99) == batches
    assert [resume.batches_after(step, history, 99) for step in (0, 19, 20, 45)] == [4, 4, 6, 1]
    assert resume.batches_by(5, [], 3) == 15  # nothing tells otherwise


def test_stretches_of_other_batches_are_told(tmp_path):
    folder = str(tmp_path)
    resume.remember_position(folder, 0, 2)  # as versions before wrote it
    for step, sizes in ((10, (8, 128)), (20, (8, 128)), (30, (16, 64))):
        resume.remember_position(folder, step, 2, sizes)
    history = resume.read_history(folder)
    assert history == [[0, 0, 2], [10, 20, 2, 8, 128], [30, 60, 2, 16, 64]]
    assert [resume.batches_by(step, history, 9) for step in (5, 15, 40)] == [10, 30, 80]
    found = resume.stretches_by(35, history, 9, (4, 32))
    assert found == [(0, 4, 32), (20, 4, 32), (40, 8, 128), (10, 16, 64)]
    assert resume.stretches_by(5, [], 3, (4, 32)) == [(0, 4, 32), (15, 4, 32)]
    assert resume.stretches_by(5, [[10, 7, 1]], 3, (4, 32)) == [(0, 4, 32), (15, 4, 32)]


def test_what_was_remembered_of_later_steps_is_forgotten(tmp_path):
    remember(tmp_path, (0, 4), (20, 6), (40, 1))
    assert remember(tmp_path, (30, 8)) == [[0, 0, 4], [20, 80, 6], [30, 140, 8]]
    assert remember(tmp_path, (20, 2)) == [[0, 0, 4], [20, 80, 2]]
    assert remember(tmp_path, (0, 1)) == [[0, 0, 1]]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1, 2]",
        '[["a", 0, 1]]',
        "[[1, 2]]",
        "[[5, 5, 1], [0, 0, 1]]",
        "[[0, 0, 0]]",
        "[[0, -5, 1]]",
        "[[-1, 0, 1]]",
    ],
)
def test_a_file_that_holds_something_else_is_named(tmp_path, content):
    (tmp_path / "data_position.json").write_text(content)
    with pytest.raises(DataError, match="data_position.json: must hold how many batches"):
        resume.read_history(str(tmp_path))


def test_empty_data_of_the_latest_checkpoint_are_told(tmp_path):
    write_checkpoint(str(tmp_path / "model.ckpt-3"), [{"global_step": np.int64(3)}])
    tf.train.update_checkpoint_state(str(tmp_path), "model.ckpt-3")
    assert resume.checkpoint_step(str(tmp_path)) == 3
    (tmp_path / "model.ckpt-3.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"ckpt-3, variable global_step: must be whole"):
        resume.checkpoint_step(str(tmp_path))
