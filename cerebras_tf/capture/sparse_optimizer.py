"""Lowers optimizer operations on rows of a table: dense formulas between a gather and a scatter.

TensorFlow hands them gradients whose row numbers are unique. This file deliberately repeats no
dense formula that the tables of rows do not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.capture.optimizer import assign
from cerebras_tf.capture.registry import lowers
from cerebras_tf.ir import Value


def _rows(c: Any, handle: Any, ids: Value) -> Value:
    value: Value = c.b.op("gather", c.state.read(handle), ids, axis=0, batch_dims=0)
    return value


def _store(c: Any, op: Any, handle: Any, ids: Value, rows: Value) -> None:
    assign(c, op, handle, c.b.op("rows_update", c.state.read(handle), ids, rows))


@lowers("ResourceSparseApplyMomentum", "ResourceSparseApplyKerasMomentum")
def _momentum(c: Any, op: Any) -> Sequence[Value]:
    """accum = momentum * accum + grad; var -= lr * accum, on the rows given."""
    var, accum = op.inputs[:2]
    rate, grad, ids, momentum = (c.value(tensor) for tensor in op.inputs[2:])
    b = c.b
    scaled = b.op("mul", rate, grad)
    decayed = b.op("mul", _rows(c, accum, ids), momentum)
    keras = op.type == "ResourceSparseApplyKerasMomentum"
    new = b.op("sub", decayed, scaled) if keras else b.op("add", decayed, grad)
    if op.get_attr("use_nesterov"):
        ahead = b.op("mul", new, momentum)
        step = b.op("sub", scaled, ahead) if keras else None
        if step is None:
            step = b.op("add", scaled, b.op("mul", rate, ahead))
    else:
        step = b.op("neg", new) if keras else b.op("mul", rate, new)
    _store(c, op, var, ids, b.op("sub", _rows(c, var, ids), step))
    _store(c, op, accum, ids, new)
    return []


@lowers("ResourceSparseApplyRMSProp", "ResourceSparseApplyCenteredRMSProp")
def _rms_prop(c: Any, op: Any) -> Sequence[Value]:
    """The RMSProp formulas on the rows given."""
    centered = op.type == "ResourceSparseApplyCenteredRMSProp"
    handles = list(op.inputs[: 4 if centered else 3])
    rate, rho, momentum, eps, grad, ids = (c.value(t) for t in op.inputs[len(handles) :])
    b, (var, ms, mom) = c.b, (handles[0], handles[-2], handles[-1])
    rest = b.op("sub", b.constant(1.0, rho.dtype), rho)

    def average(handle: Any, sample: Value) -> Value:
        old = _rows(c, handle, ids)
        new: Value = b.op("add", b.op("mul", old, rho), b.op("mul", sample, rest))
        _store(c, op, handle, ids, new)
        return new

    under = b.op("add", average(ms, b.op("square", grad)), eps)
    if centered:
        under = b.op("sub", under, b.op("square", average(handles[1], grad)))
    step = b.op("mul", b.op("mul", rate, grad), b.op("rsqrt", under))
    new_mom = b.op("add", b.op("mul", _rows(c, mom, ids), momentum), step)
    _store(c, op, mom, ids, new_mom)
    _store(c, op, var, ids, b.op("sub", _rows(c, var, ids), new_mom))
    return []


@lowers("ResourceSparseApplyAdagrad", "ResourceSparseApplyAdagradV2")
def _adagrad(c: Any, op: Any) -> Sequence[Value]:
    """accum += g^2; var -= lr g / (sqrt(accum) [+ eps]), on the rows given."""
    var, accum = op.inputs[:2]
    rate, grad, ids = c.value(op.inputs[2]), c.value(op.inputs[-2]), c.value(op.inputs[-1])
    b = c.b
    new = _rows(c, accum, ids)
    if op.get_attr("update_slots"):
        new = b.op("add", new, b.op("square", grad))
        _store(c, op, accum, ids, new)
    root = b.op("sqrt", new)
    if op.type == "ResourceSparseApplyAdagradV2":
        root = b.op("add", root, c.value(op.inputs[3]))
    step = b.op("div", b.op("mul", rate, grad), root)
    _store(c, op, var, ids, b.op("sub", _rows(c, var, ids), step))
    return []
