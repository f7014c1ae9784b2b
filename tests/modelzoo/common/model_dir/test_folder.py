"""Tests of folder.py: what can be known of a run's places before TensorFlow is loaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cerebras_tf.errors import ConfigError, StoreError
from modelzoo.common.model_dir.folder import check_places
from tests.messages import raises


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
    with raises(ConfigError, "model_dir", "file is a file"):
        check(mode, model_dir=place)


@pytest.mark.parametrize("name", ["model_dir", "checkpoint_path", "resume_from", "memoryx_dir"])
def test_control_characters_in_paths_are_refused(check, name):
    with raises(ConfigError, name, r"Received: 'a\nb'"):
        check("train", **{name: "a\nb"})


def test_a_folder_of_weights_that_is_none_is_refused(check):
    for path in ("file", "/dev/null"):
        with raises(StoreError, "memoryx_dir", path):
            check("train", memoryx_dir=path)
    check("train", memoryx_dir="new/folder")
    check("train", memoryx_dir="file", device="/cpu:0")
