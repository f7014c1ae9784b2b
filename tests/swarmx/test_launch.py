"""The launcher: what the processes say, how it ends, and what it says of those that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cerebras_tf.swarmx import launch
from cerebras_tf.swarmx.signs import sign_file
from tests.swarmx.ranks import ROOT, needs_mpi

LIMIT_S = 120
MEET = "from cerebras_tf.swarmx import mpi; s = mpi.swarm(); print(s.objects(s.rank), flush=True)"


def run(folder, program, *options, slurm="/none"):
    """Runs a program on two wafers."""
    launch_it = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", "2"]
    logs = ["--logs", str(folder / "logs"), *options, "--"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SLURM_CONF": slurm}
    return subprocess.run(
        [*launch_it, *logs, sys.executable, "-c", program],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@needs_mpi()
def test_processes_meet_and_the_first_one_is_heard(tmp_path):
    done = run(tmp_path, MEET)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n")
    assert "local processes of mpich's launcher" in done.stderr
    assert (tmp_path / "logs" / "rank_1.log").read_text(encoding="utf-8") == "[0, 1]\n"


FAILS = f"""
import os, sys, time
{MEET}
if s.rank == 1:
    {{}}
s.objects(None)
"""


@needs_mpi()
@pytest.mark.parametrize(
    "fault, what, status",
    [
        ("os.kill(os.getpid(), 9)", r"was ended by signal 9 \(SIGKILL\)", 137),
        ("os.kill(os.getpid(), 19)", r"was stopped \(SIGSTOP\)", 137),
        ("mpi.fail(); print('no disk'); sys.exit(3)", "no disk", 3),
    ],
)
def test_a_process_that_fails_ends_the_job_and_is_named(fault, what, status, tmp_path):
    start = time.monotonic()
    done = run(tmp_path, FAILS.format(fault))
    assert time.monotonic() - start < LIMIT_S / 2
    assert done.returncode == status
    assert "csrun_wse: rank 1 (process " in done.stderr
    assert re.search(what, done.stderr)


@needs_mpi()
def test_a_job_starts_again_until_attempts_are_in_vain(tmp_path):
    done = run(tmp_path, FAILS.format("os.kill(os.getpid(), 9)"), "--requeue")
    assert done.returncode == 137
    assert done.stderr.count("starting again from the last checkpoint") == 2
    assert "3 attempts wrote no checkpoint; giving up" in done.stderr


@pytest.mark.skipif(
    "CEREBRAS_TF_SLURM_CONF" not in os.environ, reason="no Slurm: .ci/run starts one where it can"
)
@needs_mpi()
def test_slurm_starts_the_processes(tmp_path):
    done = run(tmp_path, MEET, slurm=os.environ["CEREBRAS_TF_SLURM_CONF"])
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n")
    assert "tasks of Slurm's srun" in done.stderr
    done = run(
        tmp_path,
        FAILS.format("os.kill(os.getpid(), 9)"),
        slurm=os.environ["CEREBRAS_TF_SLURM_CONF"],
    )
    assert done.returncode == 137 and "was ended by signal 9" in done.stderr


def signs(folder: Path, waited: list[float], age: float = 0.0) -> None:
    """What processes write that have waited for so long."""
    for rank, seconds in enumerate(waited):
        path = sign_file(str(folder), rank)
        path.write_text(f"{seconds}", encoding="utf-8")
        then = time.time() - age
        os.utime(path, (then, then))


@pytest.mark.parametrize(
    "waited, age, said",
    [
        ([0.0, 0.0, 700.0], 0.0, "rank 0, 1 made no progress while others waited for 700 s"),
        ([700.0, 650.0], 0.0, "all ranks have waited for one another for 650 s"),
        ([0.0, 0.0], 100.0, "rank 0 has given no sign of life for 100 s"),
        ([0.0, 500.0], 0.0, ""),
        ([], 0.0, ""),
    ],
)
def test_those_who_keep_others_waiting_are_named(waited, age, said, tmp_path):
    signs(tmp_path, waited, age)
    assert launch.stuck(3, tmp_path, 600.0) == said
