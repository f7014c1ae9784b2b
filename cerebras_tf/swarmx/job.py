"""What the launcher gives each process of a job: number of wafers, rank, and folder.

A process that no launcher started is a job of its own, with one wafer. Reading this costs nothing:
MPI is looked for only where there are several.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from cerebras_tf.errors import ConfigError

WAFERS_VARIABLE = "CEREBRAS_TF_WAFERS"  # processes of the job, one wafer each
RANK_VARIABLE = "CEREBRAS_TF_RANK"  # number of this one
FOLDER_VARIABLE = "CEREBRAS_TF_JOB"  # folder of heartbeats and reports


def wafers() -> int:
    """Number of wafers in this job.

    Raises:
        ConfigError: the environment variable holds no such number.
    """
    return _number(WAFERS_VARIABLE, 1, 1)


def rank() -> int:
    """Number of this process's wafer, from 0.

    Raises:
        ConfigError: the environment variable holds no such number.
    """
    return _number(RANK_VARIABLE, 0, 0)


def is_first() -> bool:
    """Whether this process has rank 0, which logs and writes."""
    return rank() == 0


def folder() -> Optional[str]:
    """Folder of heartbeats and reports; None where no launcher made one."""
    return os.environ.get(FOLDER_VARIABLE) or None


def log_file(folder: str, name: str) -> Path:
    """A log next to the job's folder, which stays when that is removed."""
    return Path(folder).with_name(f"{name}.log")


def _number(variable: str, default: int, least: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"environment variable {variable}: must be a whole number, at least {least}. "
            f"Received: {text!r}. Unset it; csrun_wse sets it."
        )
    return int(text)
