"""Rounding by chance to a narrower type, for averages that move by less than half a unit a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.registry import element_flops, register


def _rounded_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """round_randomly(x, key): x as bfloat16, up or down with the chance that keeps its mean"""
    x, key = inputs
    if x.dtype != "float32" or key.type != TensorType("int64", ()):
        raise GraphError(
            "round_randomly: operands must be float32 and an int64 scalar, the key. Received: "
            f"{list(inputs)}. Cast them."
        )
    return [x.type.with_dtype("bfloat16")]


# What an element becomes depends on its place among all elements, so rows do not stand alone.
register(
    "round_randomly",
    _rounded_infer,
    rows=rows.across,
    differentiable=False,
    elementwise=True,
    flops=element_flops(12),
)
