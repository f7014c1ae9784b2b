"""Locks of files that belong to one process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from cerebras_tf.memoryx import process_folder

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
        process_folder.forget(descriptor)
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
    process_folder.forget(descriptor)
    os.close(descriptor)
