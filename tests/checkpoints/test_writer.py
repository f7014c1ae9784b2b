"""Checkpoints are written completely or not at all; leftovers of killed processes are removed."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from cerebras_tf.bundle import links, writer
from cerebras_tf.checkpoints.reader import CheckpointReader, converted
from cerebras_tf.checkpoints.writer import remove_killed, unfinished, write_checkpoint
from cerebras_tf.errors import CheckpointError
from tests.messages import raises

pytestmark = pytest.mark.tf

SHARDS = [{"a": np.arange(6.0)}, {"b": np.ones(2, np.float32)}]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def leave(folder, *files):
    """Makes the folder of a killed process, with a lock file that no one holds."""
    folder.mkdir()
    for name in ("lock", *files):
        (folder / name).touch()


def test_leftovers_of_a_killed_process_of_the_same_id_are_removed(tmp_path):
    leave(tmp_path / f"model-5_writing_{os.getpid()}", "part-00000.index")
    leave(tmp_path / "model-5_writing_x7", "part-00000.index")
    write_checkpoint(str(tmp_path / "model-5"), SHARDS)
    assert [name for name in names(tmp_path) if not name.startswith("model-5.")] == []
    assert CheckpointReader(str(tmp_path / "model-5")).var_names == ["a", "b"]


def test_a_folder_in_use_stays(tmp_path):
    with unfinished(str(tmp_path / "model-5")) as folder:
        write_checkpoint(str(tmp_path / "model-6"), SHARDS)
        assert os.path.isdir(folder)


def test_data_without_an_index_of_a_killed_process_is_removed(tmp_path):
    write_checkpoint(str(tmp_path / "model-2"), SHARDS)
    for step in (2, 4):  # one was killed after the last move, one before
        leave(tmp_path / f"model-{step}_writing_x{step}")
    for end in ("data-00000-of-00002", "data-00001-of-00002"):
        (tmp_path / f"model-4.{end}").touch()
    (tmp_path / "other.data-00000-of-00001").touch()  # of someone else who is copying
    write_checkpoint(str(tmp_path / "model-6"), SHARDS)
    found = {name.partition(".")[0] for name in names(tmp_path)}
    assert found == {"model-2", "model-6", "other"}


def test_a_checkpoint_that_was_being_removed_goes_unless_the_list_names_it(tmp_path):
    for step in (1, 2, 3):
        write_checkpoint(str(tmp_path / f"model-{step}"), SHARDS)
    for step in (1, 2):
        leave(tmp_path / f"model-{step}_removing_x{step}")
        (tmp_path / f"model-{step}.meta").touch()
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), "model-2", ["model-2"])
    remove_killed(tmp_path)
    found = {name.partition(".")[0] for name in names(tmp_path)}
    assert found == {"checkpoint", "model-2", "model-3"}


def test_old_data_of_the_name_is_removed_and_the_index_written_last(tmp_path, monkeypatch):
    prefix = str(tmp_path / "model-1")
    write_checkpoint(prefix, [{"a": np.zeros(3)}, {"b": np.zeros(3)}, {"c": np.zeros(3)}])
    seen = []
    replace = os.replace

    def noted(source, target):
        seen.append((os.path.basename(target), os.path.exists(f"{prefix}.index")))
        replace(source, target)

    monkeypatch.setattr(links.os, "replace", noted)
    write_checkpoint(prefix, SHARDS)
    data = [f"model-1.data-0000{shard}-of-00002" for shard in range(2)]
    assert seen == [(name, False) for name in [*data, "model-1.index"]]
    assert names(tmp_path) == [*data, "model-1.index"]


def test_a_failure_between_shards_leaves_nothing(tmp_path):
    def shards():
        yield SHARDS[0]
        raise FULL

    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(str(tmp_path / "model-1"), shards())
    assert names(tmp_path) == []


@pytest.mark.parametrize("fails", ["replace", "fsync"])
def test_a_failure_after_the_shards_leaves_nothing(tmp_path, monkeypatch, fails):
    done = getattr(os, fails)
    calls = []

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise FULL
        return done(*args)

    monkeypatch.setattr(links.os, fails, failing)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(str(tmp_path / "model-1"), SHARDS)
    assert names(tmp_path) == []


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(links.os, "fsync", lambda d: (order.append("sync"), sync(d)))
    monkeypatch.setattr(links.os, "replace", lambda *paths: (order.append("move"), replace(*paths)))
    write_checkpoint(str(tmp_path / "model-1"), SHARDS)
    assert order == ["sync"] * 3 + ["move"] * 3 + ["sync"]


def test_a_conversion_without_disk_space_leaves_nothing(tmp_path, monkeypatch):
    prefix = str(tmp_path / "model-1")
    write_checkpoint(prefix, [{"b": np.ones(2, np.float32)}])
    leave(tmp_path / f"model-1_converted_{os.getpid()}")
    before = [name for name in names(tmp_path) if "_converted_" not in name]

    def full(file):
        raise FULL

    monkeypatch.setattr(writer, "_hand_over", full)
    with raises(CheckpointError, prefix, "Received: No space left"):
        converted(prefix, {"b": "bfloat16"}).__enter__()
    assert names(tmp_path) == before
    monkeypatch.undo()
    with converted(prefix, {"b": "bfloat16"}) as path:
        assert CheckpointReader(path)["b"].dtype == tf.bfloat16
    assert names(tmp_path) == before
