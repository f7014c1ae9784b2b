"""Tests of resume.py: where the data goes on, whichever batches steps had before."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow").compat.v1

from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import CheckpointError, DataError
from modelzoo.common.config.input_sections import GptTextDataInput, GptTfRecordsInput
from modelzoo.common.config.sections import RunConfigParams
from modelzoo.common.model_dir import resume
from tests.messages import raises


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


def test_stretches_of_other_batches_are_returned(tmp_path):
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


def write_step(folder, step):
    prefix = str(folder / f"model.ckpt-{step}")
    write_checkpoint(prefix, [{"global_step": np.int64(step)}])
    tf.train.update_checkpoint_state(str(folder), prefix)


def test_data_continue_after_as_many_records_with_another_batch_size(tmp_path, caplog):
    folder, runconfig = str(tmp_path), RunConfigParams(model_dir=str(tmp_path))
    given = {"data_processor": "GptTextDataProcessor", "max_sequence_length": 8}

    def skipped(step, size, **keys):
        write_step(tmp_path, step)
        caplog.clear()
        section = GptTextDataInput(**given, batch_size=size, **keys)
        found = resume.batches_to_skip(section, runconfig)
        resume.remember_position(folder, step, 1, (size, 8))
        return found, caplog.text

    assert skipped(0, 8) == (0, "")
    assert skipped(10, 8) == (10, "")
    found, line = skipped(12, 16)
    assert found == 6 and "was 8 and is 16" in line and "96 records" in line
    assert "repeated" not in line
    assert skipped(14, 16) == (8, "")  # of the same size
    found, line = skipped(14, 24)
    assert found == 5 and "128 records read so far, of which the last 8 are repeated" in line
    assert skipped(15, 24) == (6, "")
    found, line = skipped(15, 8)  # the 8 that came again count once
    assert found == 18 and "144 records" in line


def test_batches_in_another_order_are_logged(tmp_path, caplog):
    write_step(tmp_path, 4)
    resume.remember_position(str(tmp_path), 0, 1, (8, 8))
    runconfig = RunConfigParams(model_dir=str(tmp_path))
    given = {"data_processor": "GptTfRecordsProcessor", "data_dir": "x", "vocab_size": 9}
    for shuffle in (False, True):
        caplog.clear()
        section = GptTfRecordsInput(**given, max_sequence_length=8, batch_size=4, shuffle=shuffle)
        assert resume.batches_to_skip(section, runconfig) == 8
        assert ("may be repeated or skipped" in caplog.text) == shuffle


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"batches": -5}',
        "[1, 2]",
        '[["a", 0, 1]]',
        "[[5, 5, 1], [0, 0, 1]]",
        "[[0, -5, 1]]",
        "[[Infinity, 0, 1]]",
        "[" * 5000,
        "[[0, 99999999999999, 1]]",
        "[[0, 0, 4], [20, 81, 6]]",
        b"\xff\xfe\x80",
    ],
)
def test_a_file_that_holds_something_else_is_named(tmp_path, content):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "data_position.json").write_bytes(content)
    with raises(DataError, "data_position.json", "Received: "):
        resume.read_history(str(tmp_path))


def test_empty_data_of_the_latest_checkpoint_are_refused(tmp_path):
    write_step(tmp_path, 3)
    assert resume.checkpoint_step(str(tmp_path)) == 3
    (tmp_path / "model.ckpt-3.data-00000-of-00001").write_bytes(b"")
    with raises(CheckpointError, "ckpt-3", "global_step"):
        resume.checkpoint_step(str(tmp_path))
