"""Compiles kernels of a decoder's training step in another process.

    python -m cerebras_tf.runtime.precompile

With an empty cache of compiled kernels, this process compiles while the other one loads TensorFlow
and builds the graph. They share the cache on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cerebras_tf.ir import Node, TensorType
from cerebras_tf.ir.program import Instruction
from cerebras_tf.kernels.compiled_threads import set_num_threads
from cerebras_tf.ops import infer
from cerebras_tf.runtime.cpu import CpuBackend

# Batch, sequence length, heads, size of a head, vocabulary, width of the feed-forward layer. Code
# does not depend on sizes, but the choice of a kernel for a product does.
B, S, N, H, V, F = 24, 128, 4, 48, 256, 768
ROWS, D = B * S, N * H
# An op, its attributes, and the types of its operands, in the order in which a step needs them.
STEP: Sequence[tuple[str, dict[str, Any], str]] = (
    ("matmul", {"transpose_a": False, "transpose_b": False}, f"{ROWS},{D} {D},{D}"),
    ("attention", {"scale": 1.0, "causal": True}, " ".join([f"{B},{S},{N},{H}"] * 3)),
    (
        "attention_grad",
        {"scale": 1.0, "causal": True},
        " ".join([f"{B},{S},{N},{H}"] * 5) + f" {B},{N},{S}",
    ),
    (
        "linear_softmax_xent_train",
        {"transpose_weight": True},
        f"{ROWS} {ROWS},{D} {V},{D} int32:{ROWS}",
    ),
    ("layer_norm_grad", {}, f"{B},{S},{D} {B},{S},{D} {D} {B},{S} {B},{S}"),
    ("matmul", {"transpose_a": False, "transpose_b": True}, f"{ROWS},{D} {F},{D}"),
    ("matmul", {"transpose_a": True, "transpose_b": False}, f"{ROWS},{F} {ROWS},{D}"),
    ("sum", {"axes": (0,), "keepdims": True}, f"{ROWS},{D}"),
    ("rows_add", {}, f"{V},{D} int32:{ROWS} {ROWS},{D}"),
    ("sum_of_squares", {}, f"{D},{F}"),
)


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


if __name__ == "__main__":
    set_num_threads(2)
    compile_step()
