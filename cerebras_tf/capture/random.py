"""Lowerings of TensorFlow's random ops.

Seeds become attributes and the step an operand, so that a step can be repeated. An op without
seeds deliberately gets its own from its name: its numbers differ from those of other ops and are
the same in every run.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from cerebras_tf.capture.registry import lowers
from cerebras_tf.capture.shape import integers
from cerebras_tf.ir import Value

_RENAMED = {
    "RandomStandardNormal": "random_normal",
    "RandomUniform": "random_uniform",
    "TruncatedNormal": "truncated_normal",
}


def _attributes(low: Any, op: Any) -> dict[str, Any]:
    seed, seed2 = int(op.get_attr("seed")), int(op.get_attr("seed2"))
    if seed == seed2 == 0:
        seed2 = zlib.crc32(op.name.encode())
    return {
        "shape": tuple(integers(low, op.inputs[0], "the shape of a random tensor")),
        "seed": seed,
        "seed2": seed2,
        "dtype": low.tf_type(op.outputs[0]).dtype,
    }


@lowers(*_RENAMED)
def _random(low: Any, op: Any) -> Sequence[Value]:
    return [low.b.op(_RENAMED[op.type], low.random_step(), **_attributes(low, op))]


@lowers("RandomUniformInt")
def _random_uniform_int(low: Any, op: Any) -> Sequence[Value]:
    """Integers from low up to but not including high."""
    (lowest,), (highest,) = (integers(low, tensor, "the range") for tensor in op.inputs[1:])
    attrs = dict(_attributes(low, op), low=lowest, high=highest)
    return [low.b.op("random_uniform_int", low.random_step(), **attrs)]
