"""Compiles the kernels of a transformer's training step in another process.

With an empty cache of compiled kernels, that process compiles while this one loads TensorFlow and
builds the graph. They share the cache on disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cerebras_tf.ir import Node, TensorType
from cerebras_tf.ir.program import Instruction
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER
from cerebras_tf.kernels.compiled_threads import num_threads, set_num_threads
from cerebras_tf.kernels.instruction_set import features_digest
from cerebras_tf.ops import infer
from cerebras_tf.run_module import module_command
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.swarmx.rank import end_with_parent

# Batch size, sequence length, heads, size of a head, vocabulary and width of the feed-forward
# layer. Compiled code does not depend on them, but which kernel computes a product does.
B, S, N, H, V, F = 24, 128, 4, 48, 256, 768
D, ROWS = N * H, B * S
_NN, _NT, _TN = ({"transpose_a": a, "transpose_b": b} for a, b in ((0, 0), (0, 1), (1, 0)))
_CAUSAL = {"scale": 1.0, "causal": True}
# (op, attributes, shapes of its operands): what takes longest, then from the end of a step to its
# beginning, so that both processes rarely compile the same kernel.
STEP: Sequence[tuple[str, dict[str, Any], str]] = (
    ("matmul", _NN, f"{ROWS},{D} {D},{D}"),
    ("attention", _CAUSAL, f"{B},{S},{N},{H} " * 3),
    ("attention_grad", _CAUSAL, f"{B},{S},{N},{H} " * 5 + f"{B},{N},{S}"),
    ("sum_of_squares", {}, f"{D},{F}"),
    ("rows_add", {}, f"{V},{D} int32:{ROWS} {ROWS},{D}"),
    ("sum", {"axes": (0,), "keepdims": True}, f"{ROWS},{D}"),
    ("matmul", _TN, f"{ROWS},{F} {ROWS},{D}"),
    ("matmul", _NT, f"{ROWS},{D} {F},{D}"),
    ("layer_norm_grad", {}, f"{B},{S},{D} {B},{S},{D} {D} {B},{S} {B},{S}"),
    (
        "linear_softmax_xent_train",
        {"transpose_weight": True},
        f"{ROWS} {ROWS},{D} {V},{D} int32:{ROWS}",
    ),
)


def precompile() -> None:
    """Starts a process that compiles the kernels of `STEP`; returns at once.

    It does nothing if the cache has them, or if there is only one core.
    """
    if CACHE_FOLDER is None or num_threads() == 1 or _done_file(CACHE_FOLDER).exists():
        return
    with contextlib.suppress(OSError):  # the first step compiles by itself
        subprocess.Popen(
            module_command(__name__),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that trains
            preexec_fn=functools.partial(end_with_parent, signal.SIGKILL),
        )


def _done_file(folder: Path) -> Path:
    """A file that is there if a processor with these features has compiled `STEP`."""
    return folder / f"step-{features_digest()}"


def _type(text: str) -> TensorType:
    dtype, _, shape = text.rpartition(":")
    return TensorType(dtype or "float32", tuple(map(int, shape.split(","))))


def compile_step() -> None:
    """Runs every op of `STEP` once, on zeros."""
    backend = CpuBackend()
    for op, attrs, operands in STEP:
        inputs = [_type(text) for text in operands.split()]
        outputs = infer(op, Node.of_types(op, inputs, [], attrs).inputs, attrs)
        arrays = [
            [np.zeros(type.static_shape, type.storage_dtype) for type in types]
            for types in (inputs, outputs)
        ]
        backend.load(Instruction(op, (), (), attrs), inputs, outputs)(*arrays)


def main() -> None:
    """Compiles `STEP`, unless another process is doing it."""
    assert CACHE_FOLDER is not None
    done = _done_file(CACHE_FOLDER)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(done.with_suffix(".lock"), flags, 0o600), "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        set_num_threads(2)
        compile_step()
        done.touch(0o600)


if __name__ == "__main__":
    main()
