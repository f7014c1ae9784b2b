"""What the launcher tells each process of a job: how many wafers there are, and where to write.

A process that no launcher started is a job of its own, with one wafer. Reading this costs nothing:
MPI is looked for only where there are several.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from cerebras_tf import environment

WAFERS_VARIABLE, RANK_VARIABLE = environment.WAFERS.name, environment.RANK.name
FOLDER_VARIABLE = environment.JOB_FOLDER.name


def wafers() -> int:
    """Number of wafers in this job.

    Raises:
        ConfigError: the environment variable holds no such number.
    """
    return environment.WAFERS.get()


def rank() -> int:
    """Number of this process's wafer, from 0.

    Raises:
        ConfigError: the environment variable holds no such number.
    """
    return environment.RANK.get()


def is_first() -> bool:
    """Whether this process is the one that logs and writes."""
    return rank() == 0


def folder() -> Optional[str]:
    """Folder in which the job's processes tell of themselves; None where no launcher made one."""
    return environment.JOB_FOLDER.get()


def log_file(folder: str, name: str) -> Path:
    """A log, which stays when the job's own folder beside it goes.

    Args:
        folder: of the job.
        name: of the log.
    """
    return Path(folder).with_name(f"{name}.log")
