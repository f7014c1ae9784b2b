"""Lowers optimizers that shrink weights towards zero: proximal steps, dual averaging and FTRL.

Formulas are those of the TF 2.15 kernels (core/kernels/training_ops.cc); each serves the dense and
the sparse form. It deliberately has no short cut for l1 = 0: the formulas hold there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.capture.optimizer_state import OptimizerState
from cerebras_tf.capture.registry import lowers
from cerebras_tf.ir import Value


def _shrunk(c: Any, x: Value, threshold: Value) -> Value:
    """sign(x) max(|x| - threshold, 0)"""
    b = c.b
    above = b.op("relu", b.op("sub", b.op("abs", x), threshold))
    value: Value = b.op("mul", b.op("sign", x), above)
    return value


def _proximal(c: Any, var: Value, grad: Value, rate: Value, given: dict[str, Value]) -> Value:
    """The step var - rate grad, shrunk by rate l1, divided by 1 + rate l2."""
    b = c.b
    shrunk = _shrunk(c, b.op("sub", var, b.op("mul", rate, grad)), b.op("mul", rate, given["l1"]))
    under = b.op("add", b.op("mul", rate, given["l2"]), 1.0)
    value: Value = b.op("div", shrunk, under)
    return value


@lowers("ResourceApplyProximalGradientDescent", "ResourceSparseApplyProximalGradientDescent")
def _proximal_gradient_descent(c: Any, op: Any) -> Sequence[Value]:
    """A proximal step at rate alpha; the gradient is `delta` in the dense form alone."""
    state = OptimizerState(c, op)
    given = state.operands
    grad = given["delta"] if "delta" in given else given["grad"]
    state.write("var", _proximal(c, state.read("var"), grad, given["alpha"], given))
    return []


@lowers("ResourceApplyProximalAdagrad", "ResourceSparseApplyProximalAdagrad")
def _proximal_adagrad(c: Any, op: Any) -> Sequence[Value]:
    """accum += g^2, then a proximal step at rate lr / sqrt(accum)."""
    b, state = c.b, OptimizerState(c, op)
    given = state.operands
    grad = given["grad"]
    accum = b.op("add", state.read("accum"), b.op("square", grad))
    rate = b.op("mul", given["lr"], b.op("rsqrt", accum))
    state.write("var", _proximal(c, state.read("var"), grad, rate, given))
    state.write("accum", accum)
    return []


@lowers("ResourceApplyAdagradDA", "ResourceSparseApplyAdagradDA")
def _adagrad_da(c: Any, op: Any) -> Sequence[Value]:
    """var = -lr shrunk(sum g, l1 t) / (l2 t lr + sqrt(sum g^2)) at step t."""
    b, state = c.b, OptimizerState(c, op)
    given = state.operands
    grad, rate = given["grad"], given["lr"]
    step = b.op("cast", given["global_step"], dtype=grad.dtype)
    total = b.op("add", state.read("gradient_accumulator"), grad)
    squares = b.op("add", state.read("gradient_squared_accumulator"), b.op("square", grad))
    top = b.op("mul", rate, _shrunk(c, total, b.op("mul", given["l1"], step)))
    weight = b.op("mul", given["l2"], b.op("mul", step, rate))
    under = b.op("add", weight, b.op("sqrt", squares))
    state.write("var", b.op("neg", b.op("div", top, under)))
    state.write("gradient_accumulator", total)
    state.write("gradient_squared_accumulator", squares)
    return []


@lowers(
    "ResourceApplyFtrl",
    "ResourceApplyFtrlV2",
    "ResourceSparseApplyFtrl",
    "ResourceSparseApplyFtrlV2",
)
def _ftrl(c: Any, op: Any) -> Sequence[Value]:
    """linear += g - (new^p - accum^p) / lr var; var = -shrunk(linear, l1) / (new^p / lr + 2 l2).

    p = -lr_power, new = accum + g^2; version 2 adds 2 l2_shrinkage var to g, in linear alone. With
    multiply_linear_by_lr, linear holds lr times as much.
    """
    b, state = c.b, OptimizerState(c, op)
    given = state.operands
    grad, rate, var = given["grad"], given["lr"], state.read("var")
    shifted = grad
    if "l2_shrinkage" in given:
        pull = b.op("mul", b.op("mul", given["l2_shrinkage"], 2.0), var)
        shifted = b.op("add", grad, pull)
    old = state.read("accum")
    new = b.op("add", old, b.op("square", grad))
    power = b.op("neg", given["lr_power"])
    new_root = b.op("pow", new, power)
    sigma = b.op("mul", b.op("sub", new_root, b.op("pow", old, power)), var)
    l1, l2 = given["l1"], b.op("mul", given["l2"], 2.0)
    if op.get_attr("multiply_linear_by_lr"):
        change = b.op("sub", b.op("mul", shifted, rate), sigma)
        l1, under = b.op("mul", l1, rate), b.op("add", new_root, b.op("mul", l2, rate))
    else:
        change = b.op("sub", shifted, b.op("div", sigma, rate))
        under = b.op("add", b.op("div", new_root, rate), l2)
    linear = b.op("add", state.read("linear"), change)
    state.write("var", b.op("neg", b.op("div", _shrunk(c, linear, l1), under)))
    state.write("accum", new)
    state.write("linear", linear)
    return []
