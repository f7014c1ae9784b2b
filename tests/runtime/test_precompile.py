"""Kernels of a training step that another process compiles."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tf
from cerebras_tf.ir import Node
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER
from cerebras_tf.ops import infer
from cerebras_tf.runtime import precompile

ROOT = Path(cerebras_tf.__file__).parents[1]


@pytest.mark.parametrize("index", range(len(precompile.STEP)))
def test_operands_fit_their_op(index):
    op, attrs, operands = precompile.STEP[index]
    inputs = [precompile._type(text) for text in operands.split()]
    assert infer(op, Node.of_types(op, inputs, [], attrs).inputs, attrs)


def test_a_process_is_started_until_one_has_compiled_the_step(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(precompile, "CACHE_FOLDER", tmp_path)
    monkeypatch.setattr(precompile, "num_threads", lambda: 2)
    monkeypatch.setattr(precompile, "compile_step", lambda: started.append("compiled"))
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command[2]))
    precompile.precompile()
    done = precompile._done_file(tmp_path)
    with open(done.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        precompile.main()  # another process compiles
        precompile.precompile()
    precompile.main()
    precompile.precompile()
    assert started == ["cerebras_tf.runtime.precompile"] * 2 + ["compiled"]


# Prints the functions that training compiles.
TRAIN = """
import atexit, json, sys
import cerebras_tf.kernels.compiled_jit
from numba.core import event
recorder = event.RecordingListener()
event.register("numba:compile", recorder)
from modelzoo.commands.main import main
main(["train", "-p", "configs/params_gpt3_tiny.yaml", "--max_steps", "1", "-o", sys.argv[1]])
found = {record.data["dispatcher"].py_func.__name__ for _, record in recorder.buffer}
print(json.dumps(sorted(found)))
"""


@pytest.mark.slow
@pytest.mark.tf
def test_training_finds_the_kernels_that_take_longest(tmp_path):
    assert CACHE_FOLDER is not None
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run(*command: str) -> str:
        found = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    run("-m", "cerebras_tf.runtime.precompile")
    compiled = json.loads(run("-c", TRAIN, str(tmp_path / "model")).splitlines()[-1])
    assert "kernel" in compiled  # those of elementwise expressions
    longest = ("attention_head", "attention_head_grad", "gemm_block", "small_gemm", "_loss_rows")
    assert not set(longest) & set(compiled)
