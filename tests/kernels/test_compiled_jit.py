"""The cache of compiled code, and functions that only other compiled functions call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tf
from cerebras_tf.kernels.compiled_jit import _CacheFiles, jit

MODULE = """
from cerebras_tf.kernels.compiled_jit import jit

@jit(python=True)
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


@jit(cache=False)
def halved(x):
    return x / 2


@jit(python=True, cache=False)
def quartered(x):
    return halved(halved(x))


def test_a_function_is_compiled_for_compiled_callers_without_machine_code_and_for_python():
    assert quartered(3.0) == 0.75
    ((_, compiled),) = halved.overloads.items()
    assert compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name) == 0
    assert halved(3.0) == 1.5
    assert quartered(5) == 1.25  # a new signature, after the call from Python


LINKED = """
from cerebras_tf.kernels.compiled_jit import jit

@jit()
def squared(x):
    return x * x

@jit(python=True)
def NAME(x):
    return squared(x) + 1

for call in CALLS:
    assert call() == 10
print(sum(squared.stats.cache_hits.values()), sum(squared.stats.cache_misses.values()))
"""


COMPILED, PYTHON = "lambda: NAME(3.0), ", "lambda: squared(3.0) + 1, "


@pytest.mark.parametrize("calls", [COMPILED, PYTHON + COMPILED, COMPILED + PYTHON])
def test_the_cache_has_the_code_of_functions_for_other_callers(calls, tmp_path):
    path = tmp_path / "compiled_squared.py"
    found = []
    for name in ("first_", "second"):  # of one length, so that lines and columns are equal
        path.write_text(LINKED.replace("CALLS", f"[{calls}]").replace("NAME", name))
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": str(Path(cerebras_tf.__file__).parents[1]),
        }
        command = [sys.executable, str(path)]
        found.append(subprocess.check_output(command, text=True, env=environment, timeout=120))
    assert [line.split() for line in found] == [["0", "1"], ["1", "0"]]


def test_writers_of_one_function_lose_no_signature():
    first, second = _CacheFiles("test-writers"), _CacheFiles("test-writers")
    try:
        first.save("one", 1)
        second.save("two", 2)
        assert [each.load(key) for each in (first, second) for key in ("one", "two", "three")] == [
            1,
            2,
            None,
        ] * 2
    finally:
        for key in ("one", "two"):
            first._path(repr(key)).unlink()
