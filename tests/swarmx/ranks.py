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
        "CEREBRAS_TF_WAFERS": str(size),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [mpiexec, "-n", str(size), sys.executable, "-m", "tests.swarmx.ranks", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(size)]


def _main(folder: Path) -> None:
    rank = os.environ["PMI_RANK"]
    os.environ["CEREBRAS_TF_RANK"] = rank
    function, given = pickle.loads((folder / "call.pickle").read_bytes())
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(function(*given)))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
