"""Ops made by passes only: several ops in one.

Gradients are taken before fusion, so there is no gradient rule here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.registry import lookup, register


def _fused_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """fused_elementwise(*operands; body): outputs of the body, element by element."""
    return [value.type for value in attrs["body"].outputs]


def _sum_of_squares_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """sum_of_squares(x): sum of the squares of all elements, a scalar."""
    return [inputs[0].type.with_shape(())]


def _sum_of_squares_flops(node: Node) -> Size:
    return 2 * node.inputs[0].type.size


def _fused_flops(node: Node) -> Size:
    total: Size = 0
    for inner in node.attrs["body"].nodes:
        cost = lookup(inner.op).flops
        total = total + (cost(inner) if cost is not None else 0)
    return total


register(
    "fused_elementwise",
    _fused_infer,
    rows=rows.elementwise,
    differentiable=False,
    structural=True,
    flops=_fused_flops,
)
register(
    "sum_of_squares",
    _sum_of_squares_infer,
    rows=rows.whole_sum,
    differentiable=False,
    flops=_sum_of_squares_flops,
)
