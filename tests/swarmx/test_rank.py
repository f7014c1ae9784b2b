"""What a process of a job does before its command begins, and with what it prints."""

from __future__ import annotations

import io
import mmap
import os
import subprocess
import sys

import pytest

from cerebras_tf.swarmx import rank
from cerebras_tf.swarmx.job import cores_of_task
from cerebras_tf.swarmx.rank import remove_abandoned_segments


def test_shared_memory_that_nobody_has_any_more_is_removed(tmp_path):
    names = ("mpich_shm_a", "mpich_shm_b", "another's")
    abandoned, used, other = (tmp_path / name for name in names)
    for path in (abandoned, used, other):
        path.write_bytes(bytes(mmap.PAGESIZE))
    with open(used, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        remove_abandoned_segments(tmp_path)
    assert set(tmp_path.iterdir()) == {used, other}
    remove_abandoned_segments(tmp_path)
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize(
    "environment, cores",
    [
        ({}, 6),
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "16"}, 4),
        ({"SLURM_CPUS_PER_TASK": "64"}, 6),  # bound to fewer
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_GTIDS": "4,5"}, 4),
        ({"SLURM_CPUS_ON_NODE": "1", "SLURM_GTIDS": "0,1"}, 1),
    ],
)
def test_a_task_computes_with_the_cores_that_slurm_gave_it(environment, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    assert cores_of_task(environment) == cores


class FullDisk(io.BytesIO):
    def write(self, part):
        raise OSError(28, "No space left on device")


def test_the_console_shows_what_a_log_on_a_full_disk_does_not_take(tmp_path):
    told = subprocess.Popen([sys.executable, "-c", "print('going')"], stdout=subprocess.PIPE)
    with open(tmp_path / "console", "wb") as console:
        rank._copy(told.stdout, console.fileno(), FullDisk())
    told.wait()
    told.stdout.close()
    assert (tmp_path / "console").read_text(encoding="utf-8") == "going\n"
