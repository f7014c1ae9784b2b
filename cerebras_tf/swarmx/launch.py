"""Starts a command on several wafers and reports which rank failed or hangs.

    python -m cerebras_tf.swarmx.launch --wafers 2 --logs FOLDER -- COMMAND ...

If Slurm answers, `srun` starts the processes, in its allocation if there is one; else mpich's
`mpiexec.gforker` does, on this computer. A single wafer is a plain process. These launchers end
the job if a process fails. This file adds detection of hangs and of ranks that end while others
need them, and restarts.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cerebras_tf import environment
from cerebras_tf.errors import CerebrasError, ConfigError
from cerebras_tf.installing import pip_install
from cerebras_tf.quantities import counted
from cerebras_tf.run_module import module_command
from cerebras_tf.swarmx import job
from cerebras_tf.swarmx.heartbeats import (
    GRACE_S,
    MISTAKE_STATUS,
    HeartbeatReader,
    checkpoint_file,
    failure_file,
    has_failed,
    job_folder,
    over_file,
    reports_of,
    send_signal,
    signal_file,
)
from cerebras_tf.swarmx.rank import (
    SHARED_MEMORY,
    THREADS_VARIABLE,
    end_with_parent,
    remove_abandoned_segments,
)

_POLL_S = 0.2
_NO_HEARTBEAT_S = 60.0  # a process whose heartbeat is older is gone
_ANSWER_S = 15.0  # for Slurm to answer
_TAIL_LINES = 8
_MAX_RESTARTS_IN_VAIN = 3
_HANG_S = 600.0
# Local ranks use shared memory, and open no port that another computer reaches. mpich's general
# launcher would start processes on the computers of a Slurm allocation.
_LOCAL_NETWORK = {
    "UCX_TLS": "self,sm",
    **dict.fromkeys(("FI_TCP_IFACE", "FI_SOCKETS_IFACE"), "lo"),
    "HYDRA_RMK": "user",
    "HYDRA_LAUNCHER": "fork",
}


@dataclass(frozen=True)
class Failure:
    """How a job failed.

    Attributes:
        text: what to report; "" if rank 0 has reported it.
        can_retry: whether another attempt may succeed.
    """

    status: int
    text: str
    can_retry: bool


def parser() -> argparse.ArgumentParser:
    """The launcher's own arguments."""
    found = argparse.ArgumentParser(prog="csrun_wse", add_help=False)
    found.add_argument("--wafers", type=int, required=True)
    found.add_argument("--logs", required=True)
    found.add_argument("--nodes", type=int)
    found.add_argument("--tasks-per-node", type=int)
    found.add_argument("--cpus-per-task", type=int)
    found.add_argument("--job-name", default="cerebras_tf")
    found.add_argument("--hang-timeout", type=float)
    found.add_argument("--requeue", action="store_true")
    found.add_argument("command", nargs=argparse.REMAINDER)
    return found


def main(arguments: Sequence[str]) -> int:
    """Runs a job to its end; with --requeue, restarts it after a failure."""
    args = parser().parse_args(arguments)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    logs = Path(args.logs).absolute()
    _append_to_console()
    try:
        _check(args)
        with job_folder(logs) as folder:
            return _attempts(args, command, folder)
    except CerebrasError as error:
        print_line(str(error))
    except OSError as error:
        print_line(
            f"{logs}: must be a writable folder for logs. Received: {error}. Free disk space, "
            "correct the folder's permissions, or choose another model_dir."
        )
    return MISTAKE_STATUS


def _attempts(args: Any, command: Sequence[str], folder: Path) -> int:
    """Runs a job until it succeeds or must not be tried again; returns the exit status."""
    in_vain = 0
    while True:
        before = _newest(folder)
        failure = run(args, command, folder)
        if failure is None:
            return 0
        if failure.text:
            print_line(failure.text)
        if not args.requeue or not failure.can_retry:
            return failure.status
        in_vain = 0 if _newest(folder) != before else in_vain + 1
        if in_vain == _MAX_RESTARTS_IN_VAIN:
            print_line(f"{in_vain} attempts wrote no checkpoint; stopping")
            return failure.status
        print_line(f"restarting{' from the last checkpoint' if _newest(folder) else ''}")


def _append_to_console() -> None:
    """Sets O_APPEND if the console is a file, so that no process overwrites another."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(stream).st_mode):
                flags = fcntl.fcntl(stream, fcntl.F_GETFL)
                fcntl.fcntl(stream, fcntl.F_SETFL, flags | os.O_APPEND)


def print_line(text: str) -> None:
    """Prints a paragraph on stderr."""
    print(f"csrun_wse: {text}", file=sys.stderr, flush=True)


def _check(args: Any) -> None:
    """Raises ConfigError for an option without effect."""
    if args.wafers == 1 and args.hang_timeout is not None:
        raise ConfigError(
            "--hang-timeout: must be used with at least 2 wafers. Received: 1 wafer. Remove it."
        )


def _newest(folder: Path) -> str:
    """The checkpoint that the job has written last; "" before the first."""
    with contextlib.suppress(OSError):
        return checkpoint_file(str(folder)).read_text(encoding="utf-8")
    return ""


def run(args: Any, command: Sequence[str], folder: Path) -> Optional[Failure]:
    """Runs a job once; returns None if it succeeded."""
    launcher, what = launcher_of(args)
    for path in folder.iterdir():  # of an attempt before
        if path.name not in (*job.KEPT_FILES, checkpoint_file(str(folder)).name):
            path.unlink(missing_ok=True)
    print_line(f"{counted(args.wafers, 'wafer')}, {what}; logs in {folder.parent}")
    is_mpich = launcher[:1] == [str(_mpiexec())]
    with open(job.log_file(str(folder), "launcher"), "ab") as log:
        process = subprocess.Popen(
            [*launcher, *module_command("cerebras_tf.swarmx.rank", *command)],
            env=_environment(args, folder, is_slurm=bool(launcher) and not is_mpich),
            # The first process is on this computer, and writes to this console itself.
            stdout=log if is_mpich and not _is_socket(1) else None,
            stderr=log if is_mpich else None,
            start_new_session=True,
            preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),  # it ends its processes
        )
        with _passing_signals_on(process, folder):
            hung = _watch(process, args, folder)
    if args.wafers > 1:  # of those that were killed
        remove_abandoned_segments(SHARED_MEMORY)
    return _found(args, folder, process.returncode, hung)


def _environment(args: Any, folder: Path, is_slurm: bool) -> dict[str, str]:
    """The environment of the processes."""
    found = {
        **{n: text for n, text in os.environ.items() if not n.startswith(job.TASK_VARIABLES)},
        job.NUM_CSX_VARIABLE: str(args.wafers),
        job.WAFERS_VARIABLE: str(args.wafers),
        job.FOLDER_VARIABLE: str(folder),
        job.CONSOLE_VARIABLE: f"{socket.gethostname()} /proc/{os.getpid()}/fd",
    }
    found.pop(job.RANK_VARIABLE, None)
    if is_slurm:
        # UCX's addresses may be longer than the 1,024 bytes that Slurm reads of a request (PMI-1).
        found.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
        if args.wafers > 1:
            name = environment.FI_TCP_IFACE.get()
            if name:
                found.setdefault("FI_SOCKETS_IFACE", name)  # mpich has one of the two providers
            where = f"network interface {name}" if name else "an interface that libfabric chooses"
            advice = "" if name else "; set FI_TCP_IFACE to the name of another"
            print_line(f"the ranks listen on {where}{advice}")
        return found
    if args.wafers == 1:
        found[job.RANK_VARIABLE] = "0"
    found |= _LOCAL_NETWORK
    cores = len(os.sched_getaffinity(0))
    threads = args.cpus_per_task or max(cores // args.wafers, 1)
    if threads > cores:
        print_line(f"--cpus-per-task: a process gets the {cores} available cores, not {threads}")
    found.setdefault(THREADS_VARIABLE, str(min(threads, cores)))
    return found


def _is_socket(stream: int) -> bool:
    """Whether one of the standard streams cannot be opened by its name."""
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.fstat(stream).st_mode)
    return False


def _mpiexec() -> Path:
    """Mpich's launcher of local processes, which opens no port; else its general one."""
    found = Path(sys.executable).with_name("mpiexec.gforker")
    return found if found.exists() else found.with_name("mpiexec")


def launcher_of(args: Any) -> tuple[list[str], str]:
    """The command that starts the processes, empty for one process, and a description of it."""
    srun = shutil.which("srun")
    if srun is None or not has_slurm():
        if args.wafers == 1:
            return [], "a local process"
        check_processes(args.wafers)
        mpiexec = _mpiexec()
        if not mpiexec.exists():
            raise ConfigError(
                f"num_csx: mpi4py and mpich must be installed for {args.wafers} wafers. Received: "
                f"no {mpiexec}. Start with csrun_wse, which installs them, or run "
                f"`{pip_install('mpi4py mpich')}`."
            )
        if mpiexec.name == "mpiexec":
            print_line("mpiexec listens on a port of all network interfaces while the job runs")
        return [str(mpiexec), "-n", str(args.wafers)], "local processes of mpich's launcher"
    found = [
        srun,
        f"--ntasks={args.wafers}",
        f"--job-name={args.job_name}",
        "--kill-on-bad-exit=1",
        "--mpi=pmi2",
        "--export=ALL",
    ]
    for option, value in (
        ("nodes", args.nodes or (1 if args.wafers == 1 else None)),
        ("ntasks-per-node", args.tasks_per_node),
        # srun does not take over the options of an allocation by itself.
        ("cpus-per-task", args.cpus_per_task or job.cpus_per_task()),
    ):
        if value is not None:
            found.append(f"--{option}={value}")
    return found, "a task of Slurm's srun" if args.wafers == 1 else "tasks of Slurm's srun"


def has_slurm() -> bool:
    """Whether a Slurm answers here."""
    configuration = environment.SLURM_CONF.get()
    if configuration and not os.path.exists(configuration):  # which it would wait for
        return False
    command = ["sinfo", "--noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, check=False, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


@contextlib.contextmanager
def _passing_signals_on(process: subprocess.Popen[bytes], folder: Path) -> Iterator[None]:
    """Within: signals to this process are forwarded to the commands."""
    received: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        received.append(number)
        send_signal(str(folder), received)  # a supervisor may have received the first, too

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _end(process)


def _watch(process: subprocess.Popen[bytes], args: Any, folder: Path) -> str:
    """Waits for the end; returns why the job was ended here, unless a process reports it."""
    failed_since: Optional[float] = None
    beats = HeartbeatReader(str(folder))
    while process.poll() is None:
        time.sleep(_POLL_S)
        reason = find_ended(args.wafers, folder, beats) or find_hung(
            args.wafers, folder, beats, args.hang_timeout or _HANG_S
        )
        if failed_since is None and _has_failed(args.wafers, folder):
            failed_since = time.monotonic()
        # MPI launchers do not always end the other processes if one fails.
        is_late = failed_since is not None and time.monotonic() - failed_since > GRACE_S
        if reason or is_late:
            over_file(str(folder)).touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)  # the processes see the file
            _end(process)
            return reason
    return ""


def _has_failed(wafers: int, folder: Path) -> bool:
    """Whether a process has failed, other than by a signal of the user."""
    return not signal_file(str(folder)).exists() and has_failed(str(folder), wafers)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def find_hung(wafers: int, folder: Path, beats: HeartbeatReader, timeout_s: float) -> str:
    """Names the process for which others wait too long, or which is gone; "" for none."""
    waited: dict[int, float] = {}
    now = beats.now()
    for rank in range(wafers):
        if failure_file(str(folder), rank).exists():  # it has ended
            continue
        waited[rank], since = beats.read(rank) or (0.0, now)  # now, if it has not begun
        if now - since > _NO_HEARTBEAT_S:
            return f"rank {rank} has had no heartbeat for {now - since:.0f} s"
    if max(waited.values(), default=0.0) < timeout_s:
        return ""
    busy = [rank for rank, seconds in waited.items() if not seconds]
    if not busy:
        return f"all ranks have waited for each other for {min(waited.values()):.0f} s"
    named = ", ".join(map(str, busy))
    return f"rank {named} made no progress while others waited for {max(waited.values()):.0f} s"


def find_ended(wafers: int, folder: Path, beats: HeartbeatReader) -> str:
    """Names ranks that have ended with status 0 while others wait for them; "" for none."""
    reports = reports_of(str(folder), wafers)
    ended = [item["rank"] for item in reports]
    if not reports or signal_file(str(folder)).exists() or has_failed(str(folder), wafers):
        return ""
    others = [rank for rank in range(wafers) if rank not in ended]
    since = max(map(beats.ended_since, ended))
    waiting = [rank for rank in others if beats.has_waited_since(rank, since)]
    if not waiting:
        return ""
    named, them = (", ".join(map(str, ranks)) for ranks in (ended, waiting))
    return f"rank {named} ended with status 0 while rank {them} waited for it"


def _found(args: Any, folder: Path, status: int, hung: str) -> Optional[Failure]:
    """The failure that the reports of the processes show."""
    reports = reports_of(str(folder), args.wafers)
    failed = sorted((item for item in reports if item["reason"]), key=lambda item: item["time"])
    if hung:
        return Failure(1, f"{hung}; the job was ended. {_advice(args, folder)}".rstrip(), True)
    if not failed:
        return _missing_reports(args, folder, status)
    mistakes = [item for item in failed if item["status"] == MISTAKE_STATUS]
    first = next((item for item in mistakes if _is_reported(item)), [*mistakes, *failed][0])
    code = first["status"] if first["status"] >= 0 else 128 - first["status"]
    if signal_file(str(folder)).exists():  # the user has ended it
        return Failure(code, "", False)
    retry = code != MISTAKE_STATUS
    if _is_reported(first):
        return Failure(code, "", retry)
    where = f"rank {first['rank']} (process {first['process']} on {first['host']})"
    text = f"{where} {first['reason']}; the job was ended."
    if first["status"] > 0 and first["rank"] > 0:
        log, console = (job.log_file(str(folder), f"rank_{n}") for n in (first["rank"], 0))
        lines = _tail(log)
        if lines and lines.splitlines()[-1:] == _tail(console).splitlines()[-1:]:
            text += f" Its error is the one above, of all ranks; its log is {log}."
        else:
            text += f" The last lines of its log:\n{lines}\n" if lines else ""
    return Failure(code, f"{text} {_advice(args, folder) if retry else ''}".rstrip(), retry)


def _missing_reports(args: Any, folder: Path, status: int) -> Optional[Failure]:
    """The failure of ranks that ended before they could report; the status may be 0."""
    ended = [item["rank"] for item in reports_of(str(folder), args.wafers)]
    missing = [rank for rank in range(args.wafers) if rank not in ended]
    if not missing or (not status and signal_file(str(folder)).exists()):
        return None
    named, others = (", ".join(map(str, ranks)) for ranks in (missing, ended))
    if ended:
        text = f"rank {others} ended with status 0 while rank {named} needed it; the job was ended."
        return Failure(1, f"{text} {_advice(args, folder)}".rstrip(), True)
    name = signal.Signals(-status).name if status < 0 else ""
    how = f"was ended by signal {-status} ({name})" if name else f"ended with status {status}"
    text = f"the launcher {how}.\n{_tail(job.log_file(str(folder), 'launcher'))}".rstrip()
    return Failure(128 - status if name else status or 1, text, True)


def _is_reported(failure: dict[str, Any]) -> bool:
    """Whether it is a mistake that rank 0 has reported on the console."""
    return bool(failure["rank"] == 0 and failure["status"] == MISTAKE_STATUS)


def _advice(args: Any, folder: Path) -> str:
    if args.requeue:
        return ""
    last = _newest(folder)
    if last:
        return f"The same command resumes from {last}; --requeue does it automatically."
    return "It had written no checkpoint. The same command starts from the beginning."


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:])
    return ""


# Loading TensorFlow and the library takes 2.7 s of a core and 0.26 GB that processes do not share.
_LEAST_BYTES = 0.26e9
_MAX_PER_CORE = 16  # with which a core loads for three quarters of a minute


def most_processes() -> int:
    """Number of processes that this computer has cores and memory for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return max(min(_MAX_PER_CORE * cores, int(memory / _LEAST_BYTES)), 1)


def check_processes(wafers: int) -> None:
    """Raises ConfigError for more local processes than make sense."""
    most = most_processes()
    if wafers > most:
        raise ConfigError(
            f"--num_csx: must be at most {most} with local processes: {_MAX_PER_CORE} for each "
            f"core, and {_LEAST_BYTES / 1e9:.2f} GB of memory for each of them. Received: {wafers}."
            " Lower it and raise the batch size or grad_accum_steps, or use Slurm."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
