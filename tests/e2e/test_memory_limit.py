"""Training in less memory than the model takes, which the kernel enforces."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 10**9
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(name):
    """A control group whose processes have `LIMIT` bytes of memory: its file of processes."""
    old = (V1 / "memory.limit_in_bytes").exists()
    folder = (V1 if old else V2) / name
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(LIMIT))
        except OSError as error:
            pytest.skip(f"memory cannot be limited here: {error}")
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def run(folder, where, group=None):
    def enter():
        if group is not None:
            group.write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.larger_than_limit", str(folder), where],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
        preexec_fn=enter,
        text=True,
    )
    assert done.returncode == 0, f"ended with {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.tf
@pytest.mark.slow
def test_a_model_of_more_than_the_limit_gives_the_numbers_of_one_in_memory(tmp_path):
    """1.6 GB of weights and AdamW state in 1 GB: 20 steps, an evaluation, three tokens."""
    with limited(f"cerebras_tf_{os.getpid()}") as group:
        files = run(tmp_path / "files", "files", group)
    memory = run(tmp_path / "memory", "memory")
    print(
        f"peak with the limit: {files.pop('peak'):.2f} GiB, in memory {memory.pop('peak'):.2f} GiB"
    )
    assert files == memory
    assert len(files["losses"]) == 20
