"""Tests of modelzoo/common/convert/whole_folder.py."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import CheckpointError
from modelzoo.common.convert.folders import whole_folder

PATTERNS = ("model*", "last")


def write(target, names, overwrite=False):
    with whole_folder(target, PATTERNS, overwrite) as folder:
        for name in names:
            (folder / name).write_text(f"new {name}")


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def test_files_appear_when_the_block_ends_well(tmp_path):
    with whole_folder(tmp_path / "out", PATTERNS, False) as folder:
        (folder / "model-1").write_text("new")
        (folder / "last").write_text("new")
        assert names_in(tmp_path / "out") == {folder.name}
    assert names_in(tmp_path / "out") == {"model-1", "last"}


def test_nothing_is_left_when_the_block_fails(tmp_path):
    with pytest.raises(KeyError), whole_folder(tmp_path / "out", PATTERNS, False) as folder:
        (folder / "model-1").write_text("new")
        raise KeyError
    assert not (tmp_path / "out").exists()


def test_old_files_are_refused_and_untouched(tmp_path):
    write(tmp_path, ["model-1", "last"])
    with pytest.raises(CheckpointError, match="must hold no checkpoint yet. Received: last there"):
        write(tmp_path, ["model-2", "last"])
    assert names_in(tmp_path) == {"model-1", "last"}


def test_overwriting_replaces_old_files_and_leaves_others(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, ["model-1", "last"])
    write(tmp_path, ["model-2", "last"], overwrite=True)
    assert names_in(tmp_path) == {"model-2", "last", "notes.txt"}


def test_failed_overwriting_leaves_the_old_files(tmp_path):
    write(tmp_path, ["model-1", "last"])
    with pytest.raises(KeyError), whole_folder(tmp_path, PATTERNS, True) as folder:
        (folder / "model-1").write_text("half")
        raise KeyError
    assert names_in(tmp_path) == {"model-1", "last"}
    assert (tmp_path / "model-1").read_text() == "new model-1"


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="must be a folder with disk space"):
        write(tmp_path / "file" / "out", ["last"])
