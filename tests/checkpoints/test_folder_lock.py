"""One process at a time trains in a folder, also through the Python API."""

from __future__ import annotations

import fcntl
import os
import resource
import threading

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.checkpoints.folder_lock import locked
from cerebras_tf.errors import ConfigError
from tests.estimator.regression import build, dataset
from tests.messages import raises

pytestmark = pytest.mark.tf


@pytest.fixture
def other_training(tmp_path):
    """Another process, of id 123, trains in the folder."""
    with open(tmp_path / ".lock", "w") as file:
        file.write("123\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("use_cs", [True, False])
def test_training_where_another_process_trains_is_refused(tmp_path, other_training, use_cs):
    with raises(ConfigError, "model_dir", "process 123"):
        build(tmp_path, use_cs=use_cs).train(dataset, max_steps=1)
    assert not list(tmp_path.glob("model.ckpt*"))


def test_evaluation_during_training_is_allowed_and_the_lock_ends_with_training(tmp_path):
    build(tmp_path).train(dataset, max_steps=1)
    with open(tmp_path / ".lock", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no one else has it
        assert build(tmp_path).evaluate(dataset, steps=1)["global_step"] == 1


def test_a_lock_that_writes_nothing_is_held_where_there_was_one(tmp_path, other_training):
    with raises(ConfigError, "process 123"), locked(str(tmp_path), writes=False):
        pass
    with locked(str(tmp_path / "new"), writes=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert (tmp_path / ".lock").read_text() == "123\n"


def test_what_a_killed_training_left_is_removed(tmp_path):
    build(tmp_path).train(dataset, max_steps=1)
    kept = {path.name for path in tmp_path.iterdir()}
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    for folder in ("model.ckpt-7_writing_a", "model.ckpt-1_writing_b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lock").touch()
    for name in (
        ".params.yaml.123",
        "model.ckpt-7.data-00000-of-00001",
        f"checkpoint.tmp{32 * 'a'}",
    ):
        (tmp_path / name).touch()
    for path in (tmp_path / "link_writing_c", outside / "lock"):
        path.symlink_to(outside) if path.parent == tmp_path else path.touch()
    with locked(str(tmp_path)):
        assert {path.name for path in tmp_path.iterdir()} == {*kept, "link_writing_c"}
    assert (outside / "lock").exists()


def test_the_lock_is_reentrant_and_held_by_a_thread(tmp_path):
    refused = []

    def lock():
        with raises(ConfigError, "model_dir", os.getpid()), locked(str(tmp_path)):
            pass
        refused.append(True)

    with locked(str(tmp_path)), locked(f"{tmp_path}/"):
        thread = threading.Thread(target=lock)
        thread.start()
        thread.join()
    assert refused
    with locked(str(tmp_path)):
        pass


def test_a_full_disk_is_an_error(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with raises(ConfigError, "model_dir", "File too large"), locked(str(tmp_path)):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
