"""Random tensors: a function of seeds and of the number of steps made before.

The same step of the same run always gives the same numbers, on any machine. Which generator makes
them is deliberately the kernels' affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import TensorType, Value
from cerebras_tf.ops.registry import element_flops, register


def _random_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """op(step; shape, seed, seed2, dtype), and low, high for random_uniform_int"""
    (step,) = inputs
    if step.type != TensorType("int64", ()):
        raise GraphError(
            f"random op: the step must be an int64 scalar. Received: {step!r}. Cast it."
        )
    return [TensorType(attrs["dtype"], tuple(attrs["shape"]))]


register("random_uniform", _random_infer, differentiable=False, flops=element_flops(20))
register("random_uniform_int", _random_infer, differentiable=False, flops=element_flops(20))
register("random_normal", _random_infer, differentiable=False, flops=element_flops(60))
register("truncated_normal", _random_infer, differentiable=False, flops=element_flops(80))
