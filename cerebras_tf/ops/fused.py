"""Ops made by passes only: several ops in one.

Gradients are taken before fusion, so there is no gradient rule here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.registry import Structure, lookup, register


def _fused_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """fused_elementwise(*operands; body): outputs of the body, element by element."""
    return [value.type for value in attrs["body"].outputs]


def _sum_of_squares_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """sum_of_squares(x): sum of the squares of all elements, a scalar."""
    return [inputs[0].type.with_shape(())]


def _sum_of_squares_flops(node: Node) -> Size:
    return 2 * node.inputs[0].type.size


def _fused_rows(node: Node, axes: int) -> Optional[rows.Rows]:
    """As the ops of the body have it: all elementwise, but for those that look at places."""
    body = [inner for inner in node.attrs["body"].nodes if inner.op != "constant"]
    if any(lookup(inner.op).rows is rows.across for inner in body):
        return None
    return rows.elementwise(node, axes)


def _fused_flops(node: Node) -> Size:
    total: Size = 0
    for inner in node.attrs["body"].nodes:
        cost = lookup(inner.op).flops
        total = total + (cost(inner) if cost is not None else 0)
    return total


register(
    "fused_elementwise",
    _fused_infer,
    rows=_fused_rows,
    differentiable=False,
    structure=Structure(),
    flops=_fused_flops,
)
register(
    "sum_of_squares",
    _sum_of_squares_infer,
    rows=rows.whole_sum,
    differentiable=False,
    flops=_sum_of_squares_flops,
)
