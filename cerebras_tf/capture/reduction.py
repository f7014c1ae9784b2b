"""Lowerings of reductions, argmax and cumulative sums. Axes must be known before the first step."""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers
from cerebras_tf.ir import Value
from cerebras_tf.ops.inference import normalize_axes

# TensorFlow op type -> IR op with axes and keepdims.
_OVER_AXES = {
    "All": "all",
    "Any": "any",
    "Max": "max",
    "Mean": "mean",
    "Min": "min",
    "Prod": "prod",
    "Sum": "sum",
}


def _reduce(low: Lowering, op: Operation, name: str, x: Value) -> Value:
    axes = normalize_axes(integers(low, op.inputs[1], "axis"), x.type.rank)
    if not axes:
        return x
    return low.b.op(name, x, axes=axes, keepdims=bool(op.get_attr("keep_dims")))


@lowers(*_OVER_AXES)
def _over_axes(low: Lowering, op: Operation) -> Sequence[Value]:
    return [_reduce(low, op, _OVER_AXES[op.type], low.value(op.inputs[0]))]


@lowers("EuclideanNorm")
def _euclidean_norm(low: Lowering, op: Operation) -> Sequence[Value]:
    squares = low.b.op("square", low.value(op.inputs[0]))
    return [low.b.op("sqrt", _reduce(low, op, "sum", squares))]


@lowers("L2Loss")
def _l2_loss(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    axes = tuple(range(x.type.rank))
    total = low.b.op("sum", low.b.op("square", x), axes=axes, keepdims=False)
    return [low.b.op("mul", total, 0.5)]


@lowers("ArgMax", "ArgMin")
def _arg_max(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    (axis,) = normalize_axes(integers(low, op.inputs[1], "axis"), x.type.rank)
    dtype = op.get_attr("output_type").name
    return [low.b.op(op.type.lower(), x, axis=axis, dtype=dtype)]


_RUNNING = {"Cumprod": "cumprod", "Cumsum": "cumsum", "CumulativeLogsumexp": "cumulative_logsumexp"}


@lowers(*_RUNNING)
def _cumulative(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    (axis,) = normalize_axes(integers(low, op.inputs[1], "axis"), x.type.rank)
    attrs = {key: bool(op.get_attr(key)) for key in ("exclusive", "reverse")}
    return [low.b.op(_RUNNING[op.type], x, axis=axis, **attrs)]
