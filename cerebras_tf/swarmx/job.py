"""What launchers set for each process: number of wafers, rank, job folder, and TF_CONFIG.

The variables of csrun_wse, MPI and Slurm are read here only, and checked together. A process
without a launcher is a job with one wafer. This module does not import MPI.
"""

from __future__ import annotations

import fcntl
import functools
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cerebras_tf import environment
from cerebras_tf.errors import ConfigError

WAFERS_VARIABLE, RANK_VARIABLE = environment.WAFERS.name, environment.RANK.name
FOLDER_VARIABLE = environment.JOB_FOLDER.name
NUM_CSX_VARIABLE, CONSOLE_VARIABLE = environment.NUM_CSX.name, environment.CONSOLE.name
SECRET_FILE = ".secret"  # in the job's folder: what authenticates messages between ranks
LOCK_FILE = ".held"  # in the job's folder; every process of the job holds a lock of it
KEPT_FILES = (SECRET_FILE, LOCK_FILE)  # when a job starts again
_SECRET_BYTES = 32
_OWN = (environment.WAFERS, environment.RANK, environment.JOB_FOLDER, environment.NUM_CSX)
# Variables that MPI and Slurm set for a task. The launcher removes those of another one, which may
# be left in the user's shell.
TASK_VARIABLES = ("PMI", "HYDI_", "MPI_LOCAL", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS")


@dataclass(frozen=True)
class Job:
    """The job of this process.

    Attributes:
        wafers: number of wafers, one process each.
        rank: rank of this process, from 0.
        folder: heartbeats and reports; None without a launcher.
        num_csx: number of wafers that csrun_wse was given; None for none.
    """

    wafers: int = 1
    rank: int = 0
    folder: Optional[str] = None
    num_csx: Optional[int] = None


@dataclass(frozen=True)
class Task:
    """What the supervisor of one process reads: job folder, number of wafers, and rank."""

    folder: str
    wafers: int
    rank: int
    is_first_on_host: bool
    is_slurm: bool = False


def current() -> Job:
    """The job of this process.

    Raises:
        ConfigError: the variables do not fit together, as when some of another job were left in
            the environment.
    """
    return _job(tuple(os.environ.get(variable.name) for variable in _OWN))


@functools.lru_cache(maxsize=1)
def _job(texts: tuple[Optional[str], ...]) -> Job:
    """The job by the texts of `_OWN`."""
    found = Job(
        environment.WAFERS.get(),
        environment.RANK.get(),
        environment.JOB_FOLDER.get(),
        environment.NUM_CSX.get(),
    )
    _check(found, has_rank=bool(texts[1]))
    return found


def _check(found: Job, has_rank: bool) -> None:
    """Raises ConfigError for variables that csrun_wse does not set together."""
    wafers, rank, folder = found.wafers, found.rank, found.folder
    if rank >= wafers:
        raise _refused(f"a rank below the {wafers} wafers of the job", f"rank {rank}")
    if found.num_csx not in (None, wafers):
        raise _refused("the same number of wafers twice", f"{found.num_csx} and {wafers}")
    if wafers > 1 and not has_rank:
        raise _refused(f"a rank for each of the {wafers} wafers", "no rank")
    if wafers > 1 and folder is None:
        raise _refused(f"the folder of the job of {wafers} wafers", "no folder")
    if folder is not None and not _has_launcher(folder):
        raise _refused("a job whose launcher is running", f"{folder} of one that has ended")


def _refused(must: str, received: str) -> ConfigError:
    there = [f"{variable.name}={os.environ[variable.name]}" for variable in _OWN if variable.is_set]
    return ConfigError(
        f"environment variables of csrun_wse: must be those of one job: {must}. Received: "
        f"{received} ({', '.join(there)}). Unset them, or start with csrun_wse."
    )


def _has_launcher(folder: str) -> bool:
    """Whether a process of the job holds the lock of its folder."""
    try:
        descriptor = os.open(Path(folder, LOCK_FILE), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:  # it is held, or the file system has no locks
        return True
    finally:
        os.close(descriptor)


def make_secret(folder: Path) -> None:
    """Writes the secret of a job, which its processes read, and no other user."""
    descriptor = os.open(folder / SECRET_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_SECRET_BYTES))


def sign(text: bytes, rank: int, number: int) -> bytes:
    """The code that authenticates a message of a rank: HMAC-SHA256 with the job's secret.

    Args:
        number: of the message, from 0, so that none is accepted twice.

    Raises:
        ConfigError: this process belongs to no job, or cannot read its secret.
    """
    place = f"{rank} {number} ".encode()
    return hmac.digest(_secret(folder()), place + text, "sha256")


@functools.lru_cache(maxsize=1)
def _secret(folder: Optional[str]) -> bytes:
    try:
        found = Path(folder or "/", SECRET_FILE).read_bytes()
    except OSError as error:
        raise _refused("a job with a secret", f"{error.strerror}: {error.filename}") from error
    if len(found) != _SECRET_BYTES:
        raise _refused("a job with a secret", f"{len(found)} bytes")
    return found


def wafers() -> int:
    """Number of wafers in this job; raises as `current`."""
    return current().wafers


def rank() -> int:
    """Rank of this process, from 0; raises as `current`."""
    return current().rank


def is_first() -> bool:
    """Whether this process has rank 0, which logs and writes."""
    return rank() == 0


def folder() -> Optional[str]:
    """Folder of heartbeats and reports; None without a launcher."""
    return current().folder


def num_csx() -> Optional[int]:
    """Number of wafers that csrun_wse was given, in place of the params file's; None for none."""
    return current().num_csx


def log_file(folder: str, name: str) -> Path:
    """A log next to the job's folder; it is kept when the folder is removed."""
    return Path(folder).with_name(f"{name}.log")


def task() -> Task:
    """The task of a supervisor, which csrun_wse starts by mpiexec or srun.

    Raises:
        ConfigError: there is no job, or the ranks of csrun_wse, MPI and Slurm differ.
    """
    folder, wafers = environment.JOB_FOLDER.get(), environment.WAFERS.get()
    given = [environment.RANK.get() if environment.RANK.is_set else None]
    given += [environment.PMI_RANK.get(), environment.SLURM_PROCID.get()]
    ranks = {int(rank) for rank in given if rank is not None}
    if folder is None or len(ranks) != 1 or max(ranks) >= wafers:
        raise _refused("a folder and one rank", f"ranks {sorted(ranks) or 'none'}")
    rank = ranks.pop()
    local = (environment.MPI_LOCALRANKID.get(), environment.SLURM_LOCALID.get())
    local_rank = next((int(number) for number in local if number is not None), rank)
    return Task(folder, wafers, rank, local_rank == 0, environment.SLURM_PROCID.is_set)


def console() -> tuple[str, str]:
    """Host name of the launcher, and the folder of its standard streams; ("", "") for none."""
    host, _, folder = (environment.CONSOLE.get() or "").partition(" ")
    return host, folder


def cores_of_task(variables: Mapping[str, str]) -> int:
    """Cores of this task: those that Slurm assigned, if it may run on them; else all."""
    allowed = len(os.sched_getaffinity(0))
    ranks = environment.SLURM_GTIDS.get(variables) or "0"
    tasks = ranks.count(",") + 1  # of this step, on this node
    share = (environment.SLURM_CPUS_ON_NODE.get(variables) or allowed) // tasks
    given = environment.SLURM_CPUS_PER_TASK.get(variables) or share
    return max(min(given, allowed), 1)


def cpus_per_task() -> Optional[int]:
    """Cores per task of the Slurm allocation; None if it does not say."""
    return environment.SLURM_CPUS_PER_TASK.get()


def cluster() -> dict[str, Any]:
    """TF_CONFIG, checked; {} if it is not set.

    Raises:
        ConfigError: it does not describe a task of a cluster.
    """
    return environment.TF_CONFIG.get()
