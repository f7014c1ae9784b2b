"""What the launcher sets for each process of a job: number of wafers, rank, and folder.

A process without a launcher is a job with one wafer. This module does not import MPI.
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
    """Whether this process has rank 0, which logs and writes."""
    return rank() == 0


def folder() -> Optional[str]:
    """Folder of heartbeats and reports; None without a launcher."""
    return environment.JOB_FOLDER.get()


def log_file(folder: str, name: str) -> Path:
    """A log next to the job's folder; it is kept when the folder is removed."""
    return Path(folder).with_name(f"{name}.log")
