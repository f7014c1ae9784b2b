"""Runs a command as one rank of a job and reports its end: python -m cerebras_tf.swarmx.rank.

MPI's launcher starts one such supervisor per wafer. It sets the rank of the command, writes its
log, and reports if the command was killed or stopped. Supervisor and command end together.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Optional

from cerebras_tf import environment
from cerebras_tf.errors import CerebrasError
from cerebras_tf.swarmx import job
from cerebras_tf.swarmx.heartbeats import (
    MISTAKE_STATUS,
    STOPPED_S,
    failure_file,
    has_failed,
    hold,
    mistake_file,
    over_file,
    send_signal,
    sent_signals,
    signal_file,
    state_of,
)
from cerebras_tf.whole_file import write_whole

THREADS_VARIABLE = environment.THREADS.name
_POLL_S = 0.1
SHARED_MEMORY = Path("/dev/shm")
_OVER = "was ended with its job"
_SEGMENT = "mpich_shm_"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(command: list[str]) -> int:
    """Runs the command; returns its exit status, or 128 plus the signal that ended it."""
    try:
        task = job.task()
    except CerebrasError as error:
        raise SystemExit(f"cerebras_tf.swarmx.rank: {error}") from error
    if task.is_first_on_host:  # before any here has begun
        remove_abandoned_segments(SHARED_MEMORY)
    received = _receive()
    parent = os.getppid()
    folder, number = task.folder, str(task.rank)
    hold(folder)
    cores = str(environment.THREADS.get() or job.cores_of_task(os.environ))
    given = {
        "OMP_NUM_THREADS": cores,
        **os.environ,
        THREADS_VARIABLE: cores,
        job.RANK_VARIABLE: number,
        # Sets, and what is made of them, have the same order on all wafers.
        "PYTHONHASHSEED": environment.PYTHONHASHSEED.get() or "0",
    }
    log = open(job.log_file(folder, f"rank_{number}"), "ab")  # noqa: SIM115 - open until the end
    consoles = [_console(1), _console(2)] if number == "0" else []
    streams = [console if os.isatty(console) else subprocess.PIPE for console in consoles]
    process = subprocess.Popen(
        command,
        stdin=None if number == "0" else subprocess.DEVNULL,
        stdout=streams[0] if streams else log,
        stderr=streams[1] if streams else log,
        env=given,
        close_fds=False,  # MPI's launcher is reached through one of them
        preexec_fn=functools.partial(end_with_parent, signal.SIGKILL),
    )
    threads = [
        threading.Thread(target=_copy, args=(pipe, target, log))
        for pipe, target in zip((process.stdout, process.stderr), consoles)
        if pipe is not None
    ]
    for thread in threads:
        thread.start()
    reason = _watch(process, task, received, parent)
    status: int = process.returncode
    for thread in threads:
        thread.join(timeout=1)
    if reason is None and status < 0:
        reason = f"was ended by signal {-status} ({signal.Signals(-status).name})"
        if status == -signal.SIGKILL:
            reason += ", probably because memory ran out"
    elif reason is None and status:
        status = MISTAKE_STATUS if mistake_file(folder, int(number)).exists() else status
        reason = f"ended with status {status}"
    if reason is None or signal_file(folder).exists():
        _record(folder, number, status, process.pid, reason)
        return 0
    _record(folder, number, status, process.pid, reason)
    return 128 - status if status < 0 else status


def remove_abandoned_segments(folder: Path) -> None:
    """Removes shared memory that MPI has left in killed processes of this user.

    Mpich names it by the job and the step. If Slurm counts steps from 0 again, as after a requeue,
    the next processes would use it and wait forever.
    """
    segments = set()
    for path in folder.glob(f"{_SEGMENT}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                segments.add(str(path))
    if not segments:
        return
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # of a process that has ended, or of another user
            mapped = maps.read_text(encoding="utf-8", errors="replace")
            segments -= {path for path in segments if path in mapped}
    for name in segments:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _console(number: int) -> int:
    """A standard stream of the launcher, or of this process if the launcher is on another host.

    MPI's launchers do not forward a terminal.
    """
    host, folder = job.console()
    if host == socket.gethostname():
        with contextlib.suppress(OSError):
            return os.open(f"{folder}/{number}", os.O_WRONLY | os.O_APPEND)
    return number


def _copy(pipe: IO[bytes], target: int, log: IO[bytes]) -> None:
    while part := os.read(pipe.fileno(), 1 << 16):
        with contextlib.suppress(OSError):  # a full disk
            log.write(part)
            log.flush()
        with contextlib.suppress(OSError):  # a console that is gone
            os.write(target, part)


def end_with_parent(number: int) -> None:
    """Makes the system send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, number)


def _receive() -> list[int]:
    """The signals by which this process is asked to end, from now on."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: received.append(number))
    # Mpich's last request before it kills. The command ends with this process.
    signal.signal(signal.SIGQUIT, lambda number, frame: os._exit(1))
    return received


def _watch(
    process: subprocess.Popen[bytes], task: job.Task, received: list[int], parent: int
) -> Optional[str]:
    """Waits for the end; returns the reason if the command was ended here.

    Args:
        received: signals to this process; the first is forwarded to all commands.
        parent: the process that started this one; if it ends, the command is ended.
    """
    stopped_since: Optional[float] = None
    folder, passed_on = task.folder, 0
    above = _name_of(parent)
    while process.poll() is None:
        time.sleep(_POLL_S)
        is_left = os.getppid() != parent
        if is_left or over_file(folder).exists():
            process.kill()
            process.wait()
            return f"was ended, because its parent process ({above}) ended" if is_left else _OVER
        if received and not signal_file(folder).exists():
            # Slurm forwards the requests of users; mpich ends the processes that remain by SIGINT.
            if not task.is_slurm and received[0] == signal.SIGINT:
                os._exit(1)  # without a report, and the command with it
            elif has_failed(folder, task.wafers):
                process.kill()
            else:
                send_signal(folder, received[:1])
        is_stopped = state_of(process.pid) in ("T", "t")
        stopped_since = (stopped_since or time.monotonic()) if is_stopped else None
        if stopped_since is not None and time.monotonic() - stopped_since > STOPPED_S:
            process.kill()
            process.wait()
            return "was stopped (SIGSTOP) and did not continue"
        signals = sent_signals(folder)
        for number in signals[passed_on:]:
            process.send_signal(number)
        passed_on = len(signals)
    return None


def _name_of(process: int) -> str:
    """The name of a running program."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
    return "of MPI"


def _record(folder: str, rank: str, status: int, process: int, reason: Optional[str]) -> None:
    report = {
        "rank": int(rank),
        "status": status,
        "process": process,
        "host": socket.gethostname(),
        "reason": reason,
        "time": time.time(),
    }
    write_whole(failure_file(folder, int(rank)), json.dumps(report), sync=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
