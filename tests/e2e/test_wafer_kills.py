"""A wafer's process killed or stopped at any instant: the job ends soon, and goes on to equal bits.

By hand: minutes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.e2e.wafer_runs import LIMIT_S, STEPS, command, environment, process_of, run, variables
from tests.swarmx.ranks import needs_mpi

pytestmark = [pytest.mark.tf, pytest.mark.slow, needs_mpi()]
INSTANTS = 20
SOON_S = 10


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """The folder of a run of two wafers that nobody hurt, and its seconds."""
    folder = tmp_path_factory.mktemp("untouched") / "run"
    start = time.monotonic()
    done = run(2, folder)
    assert done.returncode == 0, done.stderr
    return folder, time.monotonic() - start


def wait_for(found, process):
    """What a function returns once it is not None; None where the job has ended before."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        over = process.poll() is not None
        result = found()
        if result is not None or over:
            return result
        time.sleep(0.02)
    raise AssertionError("the job hangs")


def number_of(folder, rank):
    """Number of a rank's process; None where there is none yet."""
    try:
        return process_of(folder, rank)
    except AssertionError:
        return None


def hurt(folder, rank, number, after_s):
    """A job of two wafers that restarts by itself, one of which gets a signal; its message."""
    folder.mkdir()
    errors = folder / "errors"
    with open(folder / "out", "wb") as out, open(errors, "wb") as err:
        process = subprocess.Popen(
            command(2, folder, STEPS, "--requeue"),
            env=environment(),
            cwd=folder,
            stdout=out,
            stderr=err,
        )
    victim = wait_for(lambda: number_of(folder, rank), process)
    assert victim is not None, errors.read_text(encoding="utf-8")
    time.sleep(after_s)
    try:
        os.kill(victim, number)
    except ProcessLookupError:  # it had ended
        assert process.wait(LIMIT_S) == 0
        return ""
    since = time.monotonic()

    def ended():
        found = re.search(r"rank .*; the job was ended", errors.read_text(encoding="utf-8"))
        return found and (found[0], time.monotonic() - since)

    message = wait_for(ended, process)
    assert process.wait(LIMIT_S) == 0, errors.read_text(encoding="utf-8")
    if message is None:  # it was at its very end
        return ""
    assert message[1] < SOON_S
    return message[0]


def test_a_wafer_killed_or_stopped_at_any_instant_changes_no_bit_of_the_job(untouched, tmp_path):
    reference, whole_s = untouched
    wanted = variables(reference, STEPS)
    random = np.random.default_rng(12)
    named = 0
    for instant in range(INSTANTS):
        folder, rank = tmp_path / f"{instant}", int(random.integers(2))
        number = (signal.SIGKILL, signal.SIGSTOP)[instant % 2]
        said = hurt(folder, rank, number, random.uniform(0, whole_s))
        found = variables(folder, STEPS)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted), instant
        assert not said or said.startswith(f"rank {rank} "), said
        named += bool(said)
    assert named > INSTANTS // 2  # most came while it ran
