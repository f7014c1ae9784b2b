"""Compiled code is found by the digest of the sources, not by where their files are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cerebras_tf

MODULE = """
from cerebras_tf.kernels.compiled_jit import jit

@jit()
def doubled(x):
    return 2 * x

assert doubled(3) == 6
print(sum(doubled.stats.cache_hits.values()), sum(doubled.stats.cache_misses.values()))
"""


def test_a_second_checkout_starts_with_the_code_of_the_first(tmp_path):
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "compiled_doubled.py"
        path.write_text(MODULE)
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": str(Path(cerebras_tf.__file__).parents[1]),
        }
        ran = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        found.append(ran.stdout.split())
    assert found == [["0", "1"], ["1", "0"]]
