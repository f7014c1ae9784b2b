"""Runs a function of this tree's tests on local ranks of MPI, and hands back what each returned."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cerebras_tf.swarmx import job
from cerebras_tf.swarmx.heartbeats import hold, job_folder

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
SLURM_CONFIGURATION = os.environ.get("CEREBRAS_TF_SLURM_CONF") or None


def needs_mpi() -> pytest.MarkDecorator:
    """Skips a test where MPI is not installed; CI installs it."""
    found = Path(sys.executable).with_name("mpiexec")
    return pytest.mark.skipif(not found.exists(), reason="mpi4py and mpich are not installed")


def needs_slurm() -> pytest.MarkDecorator:
    """Skips a test where no Slurm runs for tests; its configuration is in SLURM_CONFIGURATION."""
    reason = "no Slurm: .ci/run starts one where it can"
    return pytest.mark.skipif(SLURM_CONFIGURATION is None, reason=reason)


def join_job(environment: pytest.MonkeyPatch, folder: Path, wafers: int = 2, rank: int = 0) -> None:
    """Makes this process a rank of a job in a folder, until the test ends."""
    (folder / job.LOCK_FILE).touch()
    hold(str(folder))
    if not (folder / job.SECRET_FILE).exists():
        job.make_secret(folder)
    for name, value in (
        (job.WAFERS_VARIABLE, wafers),
        (job.RANK_VARIABLE, rank),
        (job.FOLDER_VARIABLE, folder),
    ):
        environment.setenv(name, str(value))


def on_ranks(size: int, function: Callable[..., Any], folder: Path, *given: Any) -> list[Any]:
    """Calls `function(*given)` on so many ranks.

    Args:
        size: number of ranks.
        function: of a module that can be imported.
        folder: for what the ranks return.
        *given: what can be pickled.

    Returns:
        What each returned, in the order of the ranks.
    """
    (folder / "call.pickle").write_bytes(pickle.dumps((function, given)))
    environment = {
        **os.environ,
        job.WAFERS_VARIABLE: str(size),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }
    mpiexec = Path(sys.executable).with_name("mpiexec")
    with job_folder(folder / "logs") as own:
        done = subprocess.run(
            [mpiexec, "-n", str(size), sys.executable, "-m", "tests.swarmx.ranks", str(folder)],
            cwd=ROOT,
            env={**environment, job.FOLDER_VARIABLE: str(own)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(size)]


def _main(folder: Path) -> None:
    rank = os.environ["PMI_RANK"]
    os.environ[job.RANK_VARIABLE] = rank
    function, given = pickle.loads((folder / "call.pickle").read_bytes())
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(function(*given)))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
