"""Locks of files that belong to one process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from cerebras_tf.memoryx import process_folder
from cerebras_tf.memoryx.process_folder import StoreFolder

HOLDER = """
    import os, sys, time
    from pathlib import Path

    {hold}
    if os.fork() == 0:  # a worker of the input that outlives its parent
        print("forked", flush=True)
    time.sleep(60)
    os._exit(0)
"""
HOLD = {
    "folder of a store": (
        "from cerebras_tf.memoryx.process_folder import OwnFolder\n"
        "    held = OwnFolder(Path(sys.argv[1]), 'own-')"
    ),
    "model_dir": (
        "from cerebras_tf.checkpoints.folder_lock import locked\n"
        "    held = locked(sys.argv[1])\n"
        "    held.__enter__()"
    ),
}
FILES = {"folder of a store": "own-*/lock", "model_dir": ".lock"}


@pytest.mark.parametrize(
    "kind", ["folder of a store", pytest.param("model_dir", marks=pytest.mark.tf)]
)
def test_what_a_killed_process_forked_does_not_keep_its_lock(tmp_path, kind):
    script = textwrap.dedent(HOLDER).format(hold=textwrap.dedent(" " * 4 + HOLD[kind]))
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "forked\n"
        (path,) = tmp_path.glob(FILES[kind])
        descriptor = os.open(path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            process_folder.lock(descriptor)
        process.kill()
        process.wait()
        process_folder.lock(descriptor)
        process_folder.untrack(descriptor)
        os.close(descriptor)
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def test_a_forked_child_may_close_what_its_parent_has_locked(tmp_path):
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    process_folder.lock(descriptor)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = os.path.samestat(os.fstat(descriptor), os.stat(os.devnull))
            os.close(descriptor)
            status = 0 if same else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert os.path.samestat(os.fstat(descriptor), os.stat(tmp_path / "lock"))
    process_folder.untrack(descriptor)
    os.close(descriptor)


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
