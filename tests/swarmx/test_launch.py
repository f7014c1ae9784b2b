"""The launcher: what the processes say, how it ends, and what it says of those that fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cerebras_tf.swarmx import launch
from cerebras_tf.swarmx.heartbeats import (
    ENDED_WAIT_S,
    HeartbeatReader,
    failure_file,
    heartbeat_file,
)
from cerebras_tf.swarmx.launch import most_processes
from tests.swarmx.ranks import ROOT, SLURM_CONFIGURATION, needs_mpi, needs_slurm

LIMIT_S, SOON_S = 120, 10
SHORT_TIMES = Path(__file__).with_name("short_times")  # for every Python of a job
MEET = "from cerebras_tf.swarmx import mpi; s = mpi.swarm(); print(s.objects(s.rank), flush=True)"
# Sockets of this process that listen, of TCP.
LISTENS = """
import os
held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")}
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{name}").readlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
            print("listens", fields[1])
"""


def run(folder, program, *options, slurm="/none", wafers=2):
    """Runs a program on some wafers."""
    launch_it = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", str(wafers)]
    logs = ["--logs", str(folder / "logs"), *options, "--"]
    environment = {**os.environ, "PYTHONPATH": f"{SHORT_TIMES}:{ROOT}", "SLURM_CONF": slurm}
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
def test_processes_meet_open_no_port_and_the_first_one_logs(tmp_path, monkeypatch):
    # Left in the shell by other launchers.
    for name in ("SLURM_JOBID", "SLURM_NODELIST", "SLURM_PROCID", "PMI_RANK", "PMI_FD"):
        monkeypatch.setenv(name, "7")
    done = run(tmp_path, f"{MEET}{LISTENS}")
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


EARLY = """
import os, sys
if os.environ["CEREBRAS_TF_RANK"] == "1":
    sys.exit(0)
from cerebras_tf.swarmx import mpi
mpi.swarm()
"""


@needs_mpi()
@pytest.mark.parametrize(
    "program, what, status",
    [
        (FAILS.format("sys.exit(3)"), r"rank 1 \(process \d+ on .*\) ended with status 3", 3),
        (
            FAILS.format("sys.exit(0)"),
            "rank 1 ended with status 0 while rank 0 (waited for|need)",
            1,
        ),
        (
            FAILS.format("os._exit(0)"),
            "rank 1 ended with status 0 while rank 0 (waited for|need)",
            1,
        ),
        (EARLY, "rank 1 ended with status 0 while rank 0 waited for it", 1),
        (FAILS.replace("== 1", "== 0").format("sys.exit(4)"), "rank 0 .* ended with status 4", 4),
    ],
)
def test_a_program_that_ends_by_itself_while_others_need_it_ends_the_job(
    program, what, status, tmp_path
):
    start = time.monotonic()
    done = run(tmp_path, program)
    assert time.monotonic() - start < SOON_S
    assert done.returncode == status
    assert re.search(what, done.stderr), done.stderr
    assert done.stderr.count("the job was ended") == 1 and "BAD TERMINATION" not in done.stdout


@needs_mpi()
def test_one_may_be_busy_at_its_end_when_the_others_are_done(tmp_path):
    done = run(tmp_path, f"import time; {MEET}; time.sleep(2 * (s.rank == 0)); print('done')")
    assert (done.returncode, done.stdout) == (0, "[0, 1]\ndone\n"), done.stderr


ONCE = """
import os, sys
print(os.environ["CEREBRAS_TF_WAFERS"], os.environ["CEREBRAS_TF_THREADS"], flush=True)
if not os.path.exists("hurt"):
    open("hurt", "w").close()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    "slurm, what",
    [
        ("/none", "1 wafer, a local process"),
        pytest.param(SLURM_CONFIGURATION, "1 wafer, a task of Slurm's srun", marks=needs_slurm()),
    ],
)
def test_one_wafer_starts_again_with_the_cores_that_were_asked_for(slurm, what, tmp_path):
    done = run(tmp_path, ONCE, "--requeue", "--cpus-per-task", "1", slurm=slurm, wafers=1)
    assert (done.returncode, done.stdout) == (0, "1 1\n1 1\n"), done.stderr
    assert done.stderr.count(f"csrun_wse: {what}; logs in {tmp_path / 'logs'}") == 2
    assert re.search(r"rank 0 .* was ended by signal 9", done.stderr)
    assert (tmp_path / "logs" / "rank_0.log").read_text(encoding="utf-8") == done.stdout


def test_one_process_gets_no_more_cores_than_there_are(tmp_path):
    done = run(tmp_path, ONCE.partition("if")[0], "--cpus-per-task", "999", wafers=1)
    cores = len(os.sched_getaffinity(0))
    assert done.stdout == f"1 {cores}\n"
    assert f"a process gets the {cores} available cores, not 999" in done.stderr


def test_what_can_have_no_effect_is_refused(tmp_path):
    done = run(tmp_path, "", "--hang-timeout", "5", wafers=1)
    assert done.returncode == 2
    assert "--hang-timeout: " in done.stderr and "Received: 1 wafer" in done.stderr


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "logs").write_text("no folder", encoding="utf-8")
    done = run(tmp_path, "", wafers=1)
    assert done.returncode == 2
    assert f"{tmp_path / 'logs'}: must be a writable folder for logs" in done.stderr


def test_a_file_gets_all_that_launcher_and_process_print(tmp_path):
    words = [sys.executable, "-m", "cerebras_tf.swarmx.launch", "--wafers", "1", "--logs", "logs"]
    with open(tmp_path / "said", "wb") as said:
        subprocess.run(
            [*words, "--", sys.executable, "-c", "print('long' * 99); raise SystemExit(3)"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_CONF": "/none"},
            cwd=tmp_path,
            stdout=said,
            stderr=said,
            timeout=LIMIT_S,
            check=False,
        )
    lines = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("csrun_wse: 1 wafer") and lines[1] == "long" * 99
    assert "ended with status 3" in lines[2]


@needs_mpi()
def test_a_job_starts_again_until_attempts_are_in_vain(tmp_path):
    done = run(tmp_path, FAILS.format("os.kill(os.getpid(), 9)"), "--requeue")
    assert done.returncode == 137
    assert done.stderr.count("restarting\n") == 2
    assert "3 attempts wrote no checkpoint; stopping" in done.stderr


PROGRESSES = f"""
import os
{MEET}
from cerebras_tf.swarmx import job
from cerebras_tf.swarmx.heartbeats import checkpoint_file, record_checkpoint
path = checkpoint_file(job.folder())
step = int(path.read_text()) if path.exists() else 0
s.objects(None)
if s.rank == 0:
    record_checkpoint(job.folder(), str(step + 1))
s.objects(None)
if step < 4:
    os.kill(os.getpid(), 9)
"""


@needs_mpi()
def test_a_job_that_writes_checkpoints_starts_again_as_often_as_it_must(tmp_path):
    done = run(tmp_path, PROGRESSES, "--requeue")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("restarting from the last checkpoint") == 4


ENDED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: (print("saved", flush=True), sys.exit(0)))
print("begun", flush=True)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


def test_a_keeper_that_is_to_end_lets_its_command_end_as_it_sees_fit(tmp_path):
    done = run(tmp_path, ENDED, "--requeue", wafers=1)
    assert (done.returncode, done.stdout) == (0, "begun\nsaved\n"), done.stderr


@needs_mpi()
def test_one_keeper_that_is_to_end_has_all_commands_end(tmp_path):
    ready = """
rank = os.environ["CEREBRAS_TF_RANK"]
open("begun_" + rank, "w").close()
while not os.path.exists("begun_0"):  # with a handler of its own
    time.sleep(0.01)
rank == "1" and os.kill"""
    one = ENDED.replace("os.kill", ready.lstrip())
    done = run(tmp_path, one, "--requeue")
    assert (done.returncode, done.stdout) == (0, "begun\nsaved\n"), done.stderr
    assert (tmp_path / "logs" / "rank_1.log").read_text(encoding="utf-8") == done.stdout


BESIDE = """
import os, subprocess, sys, time
from cerebras_tf.swarmx import launch
if os.environ["CEREBRAS_TF_RANK"] == "0":
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    assert launch.main(["--wafers", "1", "--logs", "logs", "--", *fails]) == 3
time.sleep(2)
print("done", flush=True)
"""


@needs_mpi()
def test_a_job_is_not_touched_by_another_one_with_the_same_logs(tmp_path):
    done = run(tmp_path, BESIDE)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
    assert "rank 0 (process" in done.stderr and "It had written no checkpoint" in done.stderr
    assert {path.name for path in (tmp_path / "logs").iterdir()} >= {"rank_0.log", "rank_1.log"}
    assert not list((tmp_path / "logs").glob(".*"))


@needs_slurm()
@needs_mpi()
def test_slurm_starts_the_processes(tmp_path):
    done = run(tmp_path, MEET, slurm=SLURM_CONFIGURATION)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n")
    assert "tasks of Slurm's srun" in done.stderr
    done = run(tmp_path, FAILS.format("os.kill(os.getpid(), 9)"), slurm=SLURM_CONFIGURATION)
    assert done.returncode == 137 and "was ended by signal 9" in done.stderr


def test_more_local_processes_than_make_sense_are_refused_at_once(tmp_path):
    for wafers in (most_processes() + 1, 10**20):
        done = run(tmp_path, "", wafers=wafers)
        assert done.returncode == 2
        assert f"must be at most {most_processes()} with local processes" in done.stderr
        assert f"Received: {wafers}." in done.stderr


@needs_mpi()
def test_an_error_that_all_ranks_have_is_told_once(tmp_path):
    done = run(tmp_path, f"{MEET}; import time; time.sleep(s.rank == 0); mpi.fail(); 1 / s.size.x")
    assert done.returncode == 1
    assert done.stderr.count("AttributeError: 'int' object") == 1, done.stderr


MISTAKE = """
import os, sys
if os.environ["CEREBRAS_TF_RANK"] == "0":
    from cerebras_tf.errors import ConfigError
    from cerebras_tf.step import cluster
    with cluster.fail_together():
        raise ConfigError("model_dir: must not be in use")
import time
time.sleep(60)
"""


@needs_mpi()
def test_a_mistake_of_a_script_ends_with_2_and_is_not_tried_again(tmp_path):
    done = run(tmp_path, MISTAKE, "--requeue")
    assert done.returncode == 2, done.stderr
    # Python 3.13 also prints the line of the script that raised it.
    assert done.stderr.count("ConfigError: model_dir: must not be in use") == 1
    assert "csrun_wse: restarting" not in done.stderr


@needs_mpi()
@pytest.mark.parametrize("parents", [1, 2])
def test_a_process_above_a_rank_that_is_killed_ends_the_job(parents, tmp_path):
    """The supervisor, and mpich's launcher."""
    find = f"""
process = os.getpid()
for _ in range({parents}):
    process = int(open(f"/proc/{{process}}/stat").read().rpartition(")")[2].split()[1])
os.kill(process, 9); time.sleep(60)"""
    start = time.monotonic()
    done = run(tmp_path, FAILS.format(find.replace("\n", "\n    ")))
    assert done.returncode and time.monotonic() - start < LIMIT_S / 4
    assert re.search(r"rank [01] .*was (ended|gone)|launcher (was )?ended", done.stderr)
    assert "memory ran out" not in done.stderr


@needs_mpi()
def test_ranks_that_are_ended_as_one_hangs_are_not_asked_to_end(tmp_path):
    hangs = "import signal; signal.signal(15, lambda *_: print('asked', flush=True)); "
    program = f"{MEET}; {hangs}import time; s.rank and time.sleep(60); s.objects(None)"
    done = run(tmp_path, program, "--hang-timeout", "1")
    assert "rank 1 made no progress" in done.stderr
    assert done.stdout == "[0, 1]\n"
    log = (tmp_path / "logs" / "rank_1.log").read_text(encoding="utf-8")
    assert "asked" not in log


def reports_of(folder, reason):
    """A process of rank 1 that has ended, as its own keeper says."""
    failed = {"rank": 1, "status": -9, "process": 7, "host": "h", "reason": reason, "time": 0.0}
    failure_file(str(folder), 1).write_text(json.dumps(failed), encoding="utf-8")


@pytest.mark.parametrize(
    "reason, by_user, ends", [("died", False, True), (None, False, False), ("died", True, False)]
)
def test_processes_end_though_mpis_launcher_sees_no_failure(
    reason, by_user, ends, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "GRACE_S", 0.1)
    reports_of(tmp_path, reason)
    if by_user:
        (tmp_path / ".signal").write_text("2 ", encoding="utf-8")
    program = f"import time; time.sleep(60 if {ends} else 0.4)"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    args = launch.parser().parse_args(["--wafers", "2", "--logs", str(tmp_path)])
    start = time.monotonic()
    assert launch._watch(process, args, tmp_path) == ""
    assert time.monotonic() - start < LIMIT_S / 4
    assert (process.returncode != 0) == ends


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


class Clock:
    """A monotonic clock; what a job's processes have written is read as it advances."""

    def __init__(self, folder, monkeypatch):
        self.now, self._folder = 1000.0, folder
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: pytest.fail("a wall clock is read"))
        self.beats = HeartbeatReader(str(folder))

    def write(self, waited, beat=0):
        """Writes heartbeats of processes that have waited for so long."""
        for rank, seconds in enumerate(waited):
            path = heartbeat_file(str(self._folder), rank)
            path.write_text(f"{seconds} {beat}", encoding="utf-8")

    def advance(self, seconds):
        """Reads ten times a second meanwhile."""
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            launch.find_hung(2, self._folder, self.beats, 600.0)


@pytest.mark.parametrize(
    "waited, beats_again, ends",
    [(5.0, True, True), (5.0, False, False), (1.0, True, False), (0.0, True, False)],
)
def test_a_rank_waits_by_its_heartbeat_after_the_others_end(
    waited, beats_again, ends, tmp_path, monkeypatch
):
    clock = Clock(tmp_path, monkeypatch)
    clock.write([waited])
    reports_of(tmp_path, None)
    assert launch.find_ended(2, tmp_path, clock.beats) == ""
    clock.advance(ENDED_WAIT_S + 0.1)
    clock.write([waited], beat=int(beats_again))
    assert launch.find_ended(2, tmp_path, clock.beats) == (
        "rank 1 ended with status 0 while rank 0 waited for it" if ends else ""
    )


@pytest.mark.parametrize(
    "waited, age, said",
    [
        ([0.0, 0.0, 700.0], 0.0, "rank 0, 1 made no progress while others waited for 700 s"),
        ([700.0, 650.0], 0.0, "rank 2 made no progress while others waited for 700 s"),
        ([700.0, 650.0, 660.0], 0.0, "all ranks have waited for each other for 650 s"),
        ([0.0, 0.0], 100.0, "rank 0 has had no heartbeat for 100 s"),
        ([0.0, 500.0], 0.0, ""),
        ([], 0.0, ""),
    ],
)
def test_the_ranks_that_others_wait_for_are_named(waited, age, said, tmp_path, monkeypatch):
    clock = Clock(tmp_path, monkeypatch)
    clock.write(waited)
    assert launch.find_hung(3, tmp_path, clock.beats, 1e9) == ""
    clock.advance(age)
    assert launch.find_hung(3, tmp_path, clock.beats, 600.0) == said


def test_a_pause_of_the_computer_is_no_missing_heartbeat(tmp_path, monkeypatch):
    clock = Clock(tmp_path, monkeypatch)
    clock.write([0.0, 0.0])
    clock.advance(1)
    clock.now += 1000
    assert launch.find_hung(2, tmp_path, clock.beats, 600.0) == ""


def test_a_missing_launcher_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(launch, "has_slurm", lambda: False)
    assert launch.main(["--wafers", "2", "--logs", str(tmp_path / "logs"), "--", "true"]) == 2
    assert "mpi4py and mpich must be installed" in capsys.readouterr().err
