"""Checks that one process at a time trains in a folder, through the Python API too."""

from __future__ import annotations

import fcntl
import resource
import threading

import pytest

pytest.importorskip("tensorflow")

from cerebras_tf.checkpoints.folder_lock import locked
from cerebras_tf.errors import ConfigError
from tests.estimator.regression import build, dataset

pytestmark = pytest.mark.tf


@pytest.fixture
def other_training(tmp_path):
    """Another process, number 123, that trains in the folder."""
    with open(tmp_path / ".lock", "w") as file:
        file.write("123\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("use_cs", [True, False])
def test_training_where_another_process_trains_is_refused(tmp_path, other_training, use_cs):
    with pytest.raises(ConfigError, match="process 123 is training"):
        build(tmp_path, use_cs=use_cs).train(dataset, max_steps=1)
    assert not list(tmp_path.glob("model.ckpt*"))


def test_evaluation_beside_training_is_allowed_and_the_lock_ends_with_training(tmp_path):
    build(tmp_path).train(dataset, max_steps=1)
    with open(tmp_path / ".lock", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else has it
        assert build(tmp_path).evaluate(dataset, steps=1)["global_step"] == 1


def test_who_has_locked_a_folder_may_again_and_another_thread_may_not(tmp_path):
    refused = []

    def lock():
        with pytest.raises(ConfigError, match="must not be in use"), locked(str(tmp_path)):
            pass
        refused.append(True)

    with locked(str(tmp_path)), locked(f"{tmp_path}/"):
        thread = threading.Thread(target=lock)
        thread.start()
        thread.join()
    assert refused
    with locked(str(tmp_path)):
        pass


def test_a_folder_without_room_is_told(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        fault = "must have room .*File too large"
        with pytest.raises(ConfigError, match=fault), locked(str(tmp_path)):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_folders_elsewhere_are_not_locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with locked("gs://bucket/run"):
        assert not list(tmp_path.iterdir())
