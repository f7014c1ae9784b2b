"""Lowers the less common adaptive optimizers: AMSGrad, AdaMax, Adadelta, AddSign and PowerSign.

Formulas are those of the TF 2.15 kernels (core/kernels/training_ops.cc); each serves the dense and
the sparse form where TensorFlow has both. Regularised optimizers deliberately stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.capture.optimizer_state import OptimizerState
from cerebras_tf.capture.registry import lowers
from cerebras_tf.ir import Value


def _moved(c: Any, old: Value, sample: Value, beta: Value) -> Value:
    """old + (sample - old)(1 - beta)"""
    rest = c.b.op("sub", c.b.constant(1.0, beta.dtype), beta)
    change = c.b.op("mul", c.b.op("sub", sample, old), rest)
    value: Value = c.b.op("add", old, change)
    return value


@lowers("ResourceApplyAdamWithAmsgrad")
def _amsgrad(c: Any, op: Any) -> Sequence[Value]:
    """Adam, divided by the largest v so far: vhat = max(vhat, v)."""
    b, state = c.b, OptimizerState(c, op)
    given = state.operands
    one, grad = b.constant(1.0, given["lr"].dtype), given["grad"]
    above = b.op("sqrt", b.op("sub", one, given["beta2_power"]))
    correction = b.op("div", above, b.op("sub", one, given["beta1_power"]))
    m = _moved(c, state.read("m"), grad, given["beta1"])
    v = _moved(c, state.read("v"), b.op("square", grad), given["beta2"])
    largest = b.op("maximum", state.read("vhat"), v)
    top = b.op("mul", m, b.op("mul", given["lr"], correction))
    step = b.op("div", top, b.op("add", b.op("sqrt", largest), given["epsilon"]))
    state.write("var", b.op("sub", state.read("var"), step))
    state.write("m", m)
    state.write("v", v)
    state.write("vhat", largest)
    return []


@lowers("ResourceApplyAdaMax")
def _ada_max(c: Any, op: Any) -> Sequence[Value]:
    """v = max(b2 v, |g|); var -= lr / (1 - b1^t) m / (v + eps)."""
    b, state = c.b, OptimizerState(c, op)
    given = state.operands
    grad = given["grad"]
    m = _moved(c, state.read("m"), grad, given["beta1"])
    v = b.op("maximum", b.op("mul", given["beta2"], state.read("v")), b.op("abs", grad))
    one = b.constant(1.0, grad.dtype)
    rate = b.op("div", given["lr"], b.op("sub", one, given["beta1_power"]))
    step = b.op("mul", rate, b.op("div", m, b.op("add", v, given["epsilon"])))
    state.write("var", b.op("sub", state.read("var"), step))
    state.write("m", m)
    state.write("v", v)
    return []


@lowers("ResourceApplyAdadelta", "ResourceSparseApplyAdadelta")
def _adadelta(c: Any, op: Any) -> Sequence[Value]:
    """update = g sqrt(accum_update + eps) / sqrt(accum + eps); var -= lr update."""
    b, state = c.b, OptimizerState(c, op)
    given = state.operands
    grad, rho, eps = given["grad"], given["rho"], given["epsilon"]
    accum = _moved(c, state.read("accum"), b.op("square", grad), rho)
    old = state.read("accum_update")
    ratio = b.op("mul", b.op("sqrt", b.op("add", old, eps)), b.op("rsqrt", b.op("add", accum, eps)))
    update = b.op("mul", ratio, grad)
    state.write("var", b.op("sub", state.read("var"), b.op("mul", update, given["lr"])))
    state.write("accum", accum)
    state.write("accum_update", _moved(c, old, b.op("square", update), rho))
    return []


@lowers("ResourceApplyAddSign", "ResourceApplyPowerSign")
def _sign(c: Any, op: Any) -> Sequence[Value]:
    """var -= lr (alpha + f s) g, or lr exp(logbase f s) g: s = sign(g) sign(m), f sign_decay."""
    b, state = c.b, OptimizerState(c, op)
    given = state.operands
    grad = given["grad"]
    m = _moved(c, state.read("m"), grad, given["beta"])
    agree = b.op("mul", b.op("sign", grad), b.op("sign", m))
    decayed = b.op("mul", given["sign_decay"], agree)
    if op.type == "ResourceApplyAddSign":
        factor = b.op("add", given["alpha"], decayed)
    else:
        factor = b.op("exp", b.op("mul", given["logbase"], decayed))
    step = b.op("mul", given["lr"], b.op("mul", factor, grad))
    state.write("var", b.op("sub", state.read("var"), step))
    state.write("m", m)
    return []
