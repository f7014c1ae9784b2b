"""Kernels that a process compiles give the bits of those that it finds in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("kernels", "lines"),
    [
        (["layer_norm"], 2),
        pytest.param(
            ["layer_norm", "linear_softmax_xent_train", "attention"], 6, marks=pytest.mark.slow
        ),
    ],
)
def test_kernels_from_the_cache_give_the_bits_of_those_compiled_here(tmp_path, kernels, lines):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "tests.kernels.bits_of_kernels", *kernels],
            env=environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(done.stdout.splitlines())
    assert found[0] == found[1]
    assert len(found[0]) == lines
