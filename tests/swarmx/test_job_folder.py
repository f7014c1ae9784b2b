"""Folders of jobs: they go when every process of the job is gone, and not before."""

from __future__ import annotations

import os
import subprocess
import sys

from cerebras_tf.swarmx.heartbeats import LOCK_FILE, hold, job_folder
from tests.swarmx.ranks import ROOT

LEAVES = """
import os, sys
from pathlib import Path
from cerebras_tf.swarmx.heartbeats import job_folder
with job_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), 9)
"""


def test_the_next_job_removes_what_a_killed_one_left(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    name = process.stdout.readline().strip().rpartition("/")[2]
    other = tmp_path / name
    with job_folder(tmp_path) as folder:
        assert {path.name for path in tmp_path.iterdir()} == {name, folder.name}
        held = os.open(other / LOCK_FILE, os.O_RDWR)
        os.close(held)
    process.communicate("", timeout=60)
    with job_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
        hold(str(folder))
    assert not list(tmp_path.iterdir())


def test_a_folder_stays_for_a_process_that_outlives_its_launcher(tmp_path):
    left = tmp_path / ".job_left"
    left.mkdir()
    (left / LOCK_FILE).touch()
    hold(str(left))  # in this process, as in a rank's keeper
    with job_folder(tmp_path):
        assert left.exists()
