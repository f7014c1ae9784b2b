"""Lowers TensorFlow's fused optimizer operations to elementwise ops.

Fusion later makes one kernel of each again, for these and for any optimizer written by hand.
Formulas are those of the TF 2.15 kernels (core/kernels/training_ops.cc). Assignments inside v1
conditionals keep their guard. This file deliberately knows no learning-rate schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.capture.control import guard
from cerebras_tf.capture.registry import lowers
from cerebras_tf.ir import Value


def assign(c: Any, op: Any, handle: Any, value: Value) -> None:
    """Assigns a variable, only under the condition of a v1 conditional where there is one."""
    condition = guard(c, op)
    if condition is not None:
        value = c.b.op("select", condition, value, c.state.read(handle))
    c.state.assign(handle, value)


def _add(c: Any, *terms: Value) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = c.b.op("add", total, term)
    return total


def _mul(c: Any, *factors: Value) -> Value:
    product = factors[0]
    for factor in factors[1:]:
        product = c.b.op("mul", product, factor)
    return product


def _one(c: Any, like: Value) -> Value:
    value: Value = c.b.constant(1.0, like.dtype)
    return value


@lowers("ResourceApplyGradientDescent")
def _gradient_descent(c: Any, op: Any) -> Sequence[Value]:
    """var -= alpha * delta"""
    var, alpha, delta = op.inputs
    change = _mul(c, c.value(alpha), c.value(delta))
    assign(c, op, var, c.b.op("sub", c.state.read(var), change))
    return []


@lowers("ResourceApplyMomentum", "ResourceApplyKerasMomentum")
def _momentum(c: Any, op: Any) -> Sequence[Value]:
    """accum = momentum * accum + grad; var -= lr * accum. Keras: accum holds -lr * grad."""
    var, accum = op.inputs[0], op.inputs[1]
    rate, grad, momentum = (c.value(tensor) for tensor in op.inputs[2:])
    old = c.state.read(accum)
    if op.type == "ResourceApplyKerasMomentum":
        new = c.b.op("sub", _mul(c, old, momentum), _mul(c, rate, grad))
        step = new
        if op.get_attr("use_nesterov"):
            step = c.b.op("sub", _mul(c, new, momentum), _mul(c, rate, grad))
        assign(c, op, var, c.b.op("add", c.state.read(var), step))
    else:
        new = _add(c, _mul(c, old, momentum), grad)
        step = _mul(c, rate, new)
        if op.get_attr("use_nesterov"):
            step = _add(c, _mul(c, rate, grad), _mul(c, rate, momentum, new))
        assign(c, op, var, c.b.op("sub", c.state.read(var), step))
    assign(c, op, accum, new)
    return []


@lowers("ResourceApplyAdam")
def _adam(c: Any, op: Any) -> Sequence[Value]:
    """m += (1 - b1)(g - m); v += (1 - b2)(g^2 - v); var -= lr_t m / (sqrt v + eps)."""
    var, m, v = op.inputs[:3]
    power1, power2, rate, beta1, beta2, eps, grad = (c.value(t) for t in op.inputs[3:])
    b, one = c.b, _one(c, rate)
    correction = b.op("div", b.op("sqrt", b.op("sub", one, power2)), b.op("sub", one, power1))
    alpha = _mul(c, rate, correction)
    old_m, old_v = c.state.read(m), c.state.read(v)
    rest1, rest2 = b.op("sub", one, beta1), b.op("sub", one, beta2)
    new_m = _add(c, old_m, _mul(c, b.op("sub", grad, old_m), rest1))
    new_v = _add(c, old_v, _mul(c, b.op("sub", b.op("square", grad), old_v), rest2))
    top = new_m
    if op.get_attr("use_nesterov"):
        top = _add(c, _mul(c, new_m, beta1), _mul(c, rest1, grad))
    step = b.op("div", _mul(c, top, alpha), _add(c, b.op("sqrt", new_v), eps))
    assign(c, op, var, b.op("sub", c.state.read(var), step))
    assign(c, op, m, new_m)
    assign(c, op, v, new_v)
    return []


@lowers("ResourceApplyRMSProp", "ResourceApplyCenteredRMSProp")
def _rms_prop(c: Any, op: Any) -> Sequence[Value]:
    """ms += (1 - rho)(g^2 - ms); mom = mu mom + lr g / sqrt(ms [- mg^2] + eps); var -= mom."""
    centered = op.type == "ResourceApplyCenteredRMSProp"
    handles = list(op.inputs[: 4 if centered else 3])
    rate, rho, momentum, eps, grad = (c.value(t) for t in op.inputs[len(handles) :])
    b, (var, ms, mom) = c.b, (handles[0], handles[-2], handles[-1])
    rest = b.op("sub", _one(c, rho), rho)
    old = c.state.read(ms)
    new = _add(c, old, _mul(c, b.op("sub", b.op("square", grad), old), rest))
    under = _add(c, new, eps)
    if centered:
        mean = c.state.read(handles[1])
        mean = _add(c, mean, _mul(c, b.op("sub", grad, mean), rest))
        assign(c, op, handles[1], mean)
        under = b.op("sub", under, b.op("square", mean))
    step = _mul(c, rate, grad, b.op("rsqrt", under))
    new_mom = _add(c, _mul(c, c.state.read(mom), momentum), step)
    assign(c, op, ms, new)
    assign(c, op, mom, new_mom)
    assign(c, op, var, b.op("sub", c.state.read(var), new_mom))
    return []


@lowers("ResourceApplyAdagrad", "ResourceApplyAdagradV2")
def _adagrad(c: Any, op: Any) -> Sequence[Value]:
    """accum += g^2; var -= lr g / (sqrt(accum) [+ eps])."""
    var, accum = op.inputs[:2]
    rate, grad = c.value(op.inputs[2]), c.value(op.inputs[-1])
    new = c.state.read(accum)
    if op.get_attr("update_slots"):
        new = _add(c, new, c.b.op("square", grad))
        assign(c, op, accum, new)
    root = c.b.op("sqrt", new)
    if op.type == "ResourceApplyAdagradV2":
        root = _add(c, root, c.value(op.inputs[3]))
    step = c.b.op("div", _mul(c, rate, grad), root)
    assign(c, op, var, c.b.op("sub", c.state.read(var), step))
    return []
