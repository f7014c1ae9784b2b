"""Collectives: sums over wafers and means of gradients. On one wafer each is the identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.registry import Attrs, register


def _wafer_sum_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """wafer_sum(x): all-reduce of a small x, such as a count or a loss; blocking."""
    return [_summable("wafer_sum", inputs[0])]


def _wafer_sum_vjp(b: Any, node: Node, dys: list[Optional[Value]]) -> list[Optional[Value]]:
    """Every wafer's loss depends on this wafer's x, so their cotangents add up."""
    return [None if dy is None else b.op("wafer_sum", dy) for dy in dys]


def _wafer_concat_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """wafer_concat(x; wafers): all-gather of x along the first axis."""
    (x,) = inputs
    first = x.shape[0] if x.shape else None
    return [x.type.with_shape((None if first is None else first * attrs["wafers"], *x.shape[1:]))]


def _wafer_pick_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """wafer_pick(x, ...; roots): broadcast of each x from the wafer that is its root."""
    types = {(x.dtype, x.type.is_static) for x in inputs}
    if len(attrs["roots"]) != len(inputs) or any(not static for _, static in types):
        raise GraphError(
            f"op wafer_pick: needs a root for every operand, of static shape. Received: "
            f"{len(attrs['roots'])} roots, {len(inputs)} operands."
        )
    return [x.type for x in inputs]


def _mean_start_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """mean_start(x; in_place, root): starts the mean of x over wafers, see mean_wait.

    It is reduced to the wafer `root`, -1 for all. In place, x itself becomes the mean.
    """
    return [_summable("mean_start", inputs[0])]


def _mean_wait_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """mean_wait(x): waits for a mean that mean_start has started."""
    return [inputs[0].type]


def _summable(op: str, x: Value) -> TensorType:
    if x.dtype in ("bfloat16", "bool"):
        raise GraphError(
            f"op {op}: the dtype must be one that NumPy adds. Received: {x.dtype}. Cast it."
        )
    return x.type


register("wafer_sum", _wafer_sum_infer, _wafer_sum_vjp, rows=rows.across, collective=True)
register(
    "wafer_concat", _wafer_concat_infer, rows=rows.across, differentiable=False, collective=True
)
register("wafer_pick", _wafer_pick_infer, rows=rows.across, differentiable=False, collective=True)
register(
    "mean_start",
    _mean_start_infer,
    rows=rows.across,
    differentiable=False,
    view=lambda node: bool(node.attrs["in_place"]),
    collective=True,
)
register(
    "mean_wait",
    _mean_wait_infer,
    rows=rows.across,
    differentiable=False,
    view=True,
    collective=True,
)
