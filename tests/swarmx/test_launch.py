"""The launcher: what the processes say, how it ends, and what it says of those that fail."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cerebras_tf.swarmx import launch
from cerebras_tf.swarmx.signs import (
    failure_file,
    is_lost,
    keeper_file,
    sign_file,
    write_keeper,
)
from tests.swarmx.ranks import ROOT, SLURM_CONFIGURATION, needs_mpi, needs_slurm

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
        ("raise ValueError('no room')", "no room", 1),
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


PROGRESSES = f"""
import os
{MEET}
from cerebras_tf.swarmx import job
from cerebras_tf.swarmx.signs import checkpoint_file, tell_checkpoint
path = checkpoint_file(job.folder())
step = int(path.read_text()) if path.exists() else 0
s.objects(None)
if s.rank == 0:
    tell_checkpoint(job.folder(), str(step + 1))
s.objects(None)
if step < 4:
    os.kill(os.getpid(), 9)
"""


@needs_mpi()
def test_a_job_that_writes_checkpoints_starts_again_as_often_as_it_must(tmp_path):
    done = run(tmp_path, PROGRESSES, "--requeue")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("starting again from the last checkpoint") == 4


@needs_slurm()
@needs_mpi()
def test_slurm_starts_the_processes(tmp_path):
    done = run(tmp_path, MEET, slurm=SLURM_CONFIGURATION)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n")
    assert "tasks of Slurm's srun" in done.stderr
    done = run(tmp_path, FAILS.format("os.kill(os.getpid(), 9)"), slurm=SLURM_CONFIGURATION)
    assert done.returncode == 137 and "was ended by signal 9" in done.stderr


def told_of(folder, reason):
    """A process of rank 1 that has ended, as its own keeper says."""
    failed = {"rank": 1, "status": -9, "process": 7, "host": "h", "reason": reason, "time": 0.0}
    failure_file(str(folder), 1).write_text(json.dumps(failed), encoding="utf-8")


@pytest.mark.parametrize(
    "reason, by_user, ends", [("died", False, True), (None, False, False), ("died", True, False)]
)
def test_processes_end_though_mpis_launcher_sees_no_failure(
    reason, by_user, ends, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "_GRACE_S", 0.1)
    told_of(tmp_path, reason)
    if by_user:
        (tmp_path / ".signal").write_text("2 ", encoding="utf-8")
    program = f"import time; time.sleep(60 if {ends} else 1)"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    args = launch.parser().parse_args(["--wafers", "2", "--logs", str(tmp_path)])
    start = time.monotonic()
    assert launch._watch(process, args, tmp_path) == ""
    assert time.monotonic() - start < LIMIT_S / 4
    assert (process.returncode != 0) == ends


@needs_mpi()
def test_a_keeper_that_is_killed_ends_the_job(tmp_path):
    start = time.monotonic()
    done = run(tmp_path, FAILS.format("os.kill(os.getppid(), 9); time.sleep(60)"))
    assert time.monotonic() - start < LIMIT_S / 4
    assert done.returncode
    assert re.search(r"rank (0, )?1: the process above it .* was ended", done.stderr)


def test_a_keeper_is_missed_where_nobody_said_how_its_rank_ended(tmp_path):
    folder = str(tmp_path)
    write_keeper(folder, 1)
    assert not is_lost(folder, 0) and not is_lost(folder, 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
    host = socket.gethostname()
    keeper_file(folder, 1).write_text(f"{ended.pid} {host}", encoding="utf-8")
    assert "rank 1: the process above it" in launch._lost(2, tmp_path)
    ended.wait()
    assert is_lost(folder, 1)
    keeper_file(folder, 0).write_text(f"{ended.pid} another_{host}", encoding="utf-8")
    assert not is_lost(folder, 0)
    told_of(tmp_path, "was ended by signal 9 (SIGKILL)")
    assert launch._lost(2, tmp_path) == ""


@needs_mpi()
def test_processes_end_with_a_launcher_that_is_killed(tmp_path):
    tell = f"{MEET}; open(f'{{s.rank}}', 'w').write(str(__import__('os').getpid())); "
    words = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", "2", "--logs"]
    launcher = subprocess.Popen(
        [*words, str(tmp_path / "logs"), "--", sys.executable, "-c", f"{tell}s.objects(input())"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_CONF": "/none"},
        cwd=tmp_path,
        stdin=subprocess.PIPE,  # on which the first process waits, and the other one for that
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    files = [tmp_path / "0", tmp_path / "1"]
    wait_until(lambda: all(path.exists() and path.read_text(encoding="utf-8") for path in files))
    launcher.kill()
    launcher.wait()
    processes = [Path("/proc", path.read_text(encoding="utf-8")) for path in files]
    wait_until(lambda: not any(process.exists() for process in processes))
    launcher.stdin.close()


def wait_until(holds):
    """Returns when something holds."""
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


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


def test_a_missing_launcher_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(launch, "has_slurm", lambda: False)
    assert launch.main(["--wafers", "2", "--logs", str(tmp_path / "logs"), "--", "true"]) == 2
    assert "need the packages mpi4py and mpich" in capsys.readouterr().err
