"""Tests of folder.py: what can be known of a run's places before TensorFlow is loaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cerebras_tf.errors import CheckpointError, ConfigError, StoreError
from modelzoo.common.model_dir.folder import check_places


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks the places of a run, with the model_dir ``run``, which is not there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "checkpoint").write_text("")
    keys = ("checkpoint_path", "resume_from", "device", "memoryx_dir")
    keys += ("validate_only", "compile_only")

    def run(mode, **given):
        check_places(SimpleNamespace(**{"model_dir": "run", **dict.fromkeys(keys), **given}), mode)

    return run


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_place_of_the_folder_is_refused(check, mode, place):
    with pytest.raises(ConfigError, match="model_dir: must be a folder .*file is a file"):
        check(mode, model_dir=place)


@pytest.mark.parametrize("path", ["nothing", "empty", "empty/model.ckpt-1", "file"])
def test_a_checkpoint_that_is_not_there_is_refused(check, path):
    told = f"^{path}: must be a checkpoint, or a folder that holds one. Received: none there"
    for mode, key in (
        ("train", "checkpoint_path"),
        ("train_and_eval", "resume_from"),
        ("predict", "checkpoint_path"),
    ):
        with pytest.raises(CheckpointError, match=told):
            check(mode, **{key: path})
        check(mode, **{key: path}, compile_only=True)


def test_a_folder_to_evaluate_must_hold_a_checkpoint(check):
    for mode in ("eval", "eval_all", "predict"):
        with pytest.raises(CheckpointError, match="run: must be a checkpoint.* Train first"):
            check(mode)
        check(mode, validate_only=True)
        check(mode, model_dir="begun")
    check("train")


def test_a_run_that_goes_on_needs_no_more_what_it_began_from(check):
    check("train", model_dir="begun", resume_from="nothing")
    check("eval_all", model_dir="begun", checkpoint_path="nothing")


def test_a_prefix_of_files_is_a_checkpoint(check, tmp_path):
    (tmp_path / "empty" / "model.ckpt-1.index").write_text("")
    for path in ("empty", "empty/model.ckpt-1", "empty/model.ckpt-1.index"):
        check("eval", checkpoint_path=path)


def test_a_folder_of_weights_that_is_none_is_refused(check):
    for path in ("file", "/dev/null"):
        with pytest.raises(StoreError, match="memoryx_dir .*: must be a folder"):
            check("train", memoryx_dir=path)
    check("train", memoryx_dir="new/folder")
    check("train", memoryx_dir="file", device="/cpu:0")
