"""Folders of stores: those of killed processes go, those of running ones stay."""

from __future__ import annotations

import os

import pytest

from cerebras_tf.memoryx import process_folder
from cerebras_tf.memoryx.process_folder import StoreFolder


def test_folders_of_killed_processes_are_removed_and_those_in_use_stay(tmp_path):
    used = StoreFolder(tmp_path)
    for left, has_lock in (("memoryx-early", False), ("memoryx-late", True)):
        (tmp_path / left).mkdir()
        if has_lock:
            (tmp_path / left / "lock").touch()
            (tmp_path / left / "contents").write_text("weights", encoding="utf-8")
    kept = tmp_path / "another's"
    kept.mkdir()
    second = StoreFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {used.path, second.path, kept}
    for folder in (used, second):
        folder.remove()
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("when", ["before its lock is made", "before its lock is held"])
def test_a_folder_that_another_process_takes_for_abandoned_is_made_again(
    tmp_path, monkeypatch, when
):
    taken = []
    real_open, real_lock = os.open, process_folder.lock

    def opened(path, *args, **kwargs):
        if when.endswith("made") and not taken:
            taken.append(path)
            process_folder.remove_abandoned(tmp_path, "*")
        return real_open(path, *args, **kwargs)

    def locked(descriptor):
        if when.endswith("held") and not taken:
            taken.append(descriptor)
            process_folder.remove_abandoned(tmp_path, "*")
        real_lock(descriptor)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(process_folder, "lock", locked)
    folder = StoreFolder(tmp_path)
    assert taken
    assert list(tmp_path.iterdir()) == [folder.path]
    assert os.listdir(folder.path) == ["lock"]
    folder.remove()
