"""Elementwise ops: one element out for one element in, after broadcasting.

Gradient rules use x for operands, y for the output, dy for its cotangent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.ir import Node, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, sum_to
from cerebras_tf.ops.inference import broadcast, broadcast_bool, broadcast_shapes, same_as_first
from cerebras_tf.ops.registry import Attrs, element_flops, register

# Groups of operands that an op is linear in (OpDef.linear): the first, each, both together.
_FIRST, _EACH, _BOTH = ((0,),), ((0,), (1,)), ((0, 1),)


def _unary(
    name: str, derivative: Any, cost: int = 1, linear: Any = (), repeats: bool = False
) -> None:
    """Registers y = f(x); `derivative(b, x, y, dy)` gives dx."""

    def vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
        dy = dys[0]
        return [None if dy is None else derivative(b, node.inputs[0], node.output, dy)]

    register(
        name,
        same_as_first,
        vjp,
        rows=rows.elementwise,
        elementwise=True,
        repeats=repeats,
        linear=linear,
        flops=element_flops(cost),
    )


def _binary(
    name: str, derivative: Any, cost: int = 1, zeros: tuple[int, ...] = (), linear: Any = ()
) -> None:
    """Registers z = f(x, y) with broadcasting; `derivative(b, x, y, z, dz)` gives (dx, dy)."""

    def vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
        dz = dys[0]
        if dz is None:
            return [None, None]
        x, y = node.inputs
        dx, dy = derivative(b, x, y, node.output, dz)
        return [None if dx is None else sum_to(b, dx, x), None if dy is None else sum_to(b, dy, y)]

    register(
        name,
        broadcast,
        vjp,
        rows=rows.elementwise,
        elementwise=True,
        broadcasts=True,
        zeros=zeros,
        linear=linear,
        flops=element_flops(cost),
    )


def _flat(
    name: str, infer: Any, cost: int = 1, zeros: tuple[int, ...] = (), of_range: bool = False
) -> None:
    """Registers an op whose derivative is zero wherever it exists."""

    def of_this_family(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
        types: list[TensorType] = infer(inputs, attrs)
        return types

    register(
        name,
        of_this_family,
        rows=rows.elementwise,
        differentiable=False,
        elementwise=True,
        broadcasts=infer in (broadcast, broadcast_bool),
        zeros=zeros,
        of_range=of_range,
        flops=element_flops(cost),
    )


def _bool_like(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    return [inputs[0].type.with_dtype("bool")]


def _one_minus_square(b: Builder, x: Value) -> Value:
    return b.op("sub", b.constant(1.0, x.dtype), b.op("square", x))


def _times(derivative: Any) -> Any:
    """The rule dy f'(x), where `derivative(b, x, y)` emits f'(x)."""
    return lambda b, x, y, dy: b.op("mul", dy, derivative(b, x, y))


_unary("neg", lambda b, x, y, dy: b.op("neg", dy), linear=_FIRST)
_unary("exp", _times(lambda b, x, y: y), 10)
_unary("expm1", _times(lambda b, x, y: b.op("add", y, 1.0)), 10)
_unary("log", lambda b, x, y, dy: b.op("div", dy, x), 10)
_unary("log1p", lambda b, x, y, dy: b.op("div", dy, b.op("add", x, 1.0)), 10)
_unary("square", _times(lambda b, x, y: b.op("mul", x, 2.0)))
_unary("reciprocal", lambda b, x, y, dy: b.op("neg", b.op("mul", dy, b.op("square", y))))
_unary("sqrt", lambda b, x, y, dy: b.op("div", b.op("mul", dy, 0.5), y), 4)
_unary(
    "rsqrt",
    lambda b, x, y, dy: b.op("mul", b.op("mul", dy, -0.5), b.op("mul", b.op("square", y), y)),
    4,
)
_unary("abs", _times(lambda b, x, y: b.op("sign", x)))
_unary("sin", _times(lambda b, x, y: b.op("cos", x)), 10)
_unary("cos", lambda b, x, y, dy: b.op("neg", b.op("mul", dy, b.op("sin", x))), 10)
_unary("tanh", _times(lambda b, x, y: _one_minus_square(b, y)), 10)
_unary(
    "sigmoid", _times(lambda b, x, y: b.op("mul", y, b.op("sub", b.constant(1.0, x.dtype), y))), 10
)
_unary("tan", _times(lambda b, x, y: b.op("add", b.op("square", y), 1.0)), 10)
_unary("sinh", _times(lambda b, x, y: b.op("cosh", x)), 20)
_unary("cosh", _times(lambda b, x, y: b.op("sinh", x)), 20)
_unary("asin", _times(lambda b, x, y: b.op("rsqrt", _one_minus_square(b, x))), 20)
_unary(
    "acos",
    lambda b, x, y, dy: b.op("neg", b.op("mul", dy, b.op("rsqrt", _one_minus_square(b, x)))),
    20,
)
_unary("atan", lambda b, x, y, dy: b.op("div", dy, b.op("add", b.op("square", x), 1.0)), 20)
_unary("asinh", lambda b, x, y, dy: b.op("div", dy, b.op("cosh", y)), 20)
_unary("acosh", lambda b, x, y, dy: b.op("div", dy, b.op("sinh", y)), 20)
_unary("atanh", lambda b, x, y, dy: b.op("div", dy, _one_minus_square(b, x)), 20)
_unary("softplus", _times(lambda b, x, y: b.op("sigmoid", x)), 20)


def _erf_derivative(scale: float) -> Any:
    """d erf(x) / dx = 2 / sqrt(pi) exp(-x^2); erfc(x) = 1 - erf(x)."""

    def derivative(b: Builder, x: Value, y: Value, dy: Value) -> Value:
        return b.op("mul", b.op("mul", dy, scale), b.op("exp", b.op("neg", b.op("square", x))))

    return derivative


_unary("erf", _erf_derivative(2.0 / math.sqrt(math.pi)), 20)
_unary("erfc", _erf_derivative(-2.0 / math.sqrt(math.pi)), 20)
_unary(
    "relu",
    lambda b, x, y, dy: b.op("select", b.op("greater", y, 0.0), dy, b.constant(0.0, dy.dtype)),
)
_unary("identity", lambda b, x, y, dy: dy, 0, _FIRST, repeats=True)
for _name in ("sign", "floor", "ceil", "round"):
    _flat(_name, same_as_first)
for _name in ("is_finite", "is_nan", "is_inf"):
    _flat(_name, _bool_like, of_range=True)
_flat("logical_not", _bool_like)
for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    _flat(_name, broadcast_bool)
_flat("logical_and", broadcast_bool, zeros=(0, 1))
_flat("logical_or", broadcast_bool)
for _name in ("floor_div", "trunc_mod"):
    _flat(_name, broadcast)
# masked_like(w, x): x, but -0.0 where w is -0.0 (a pruned weight); other zeros are +0.0.
_flat("masked_like", broadcast, 2)

_binary("add", lambda b, x, y, z, dz: (dz, dz), linear=_BOTH)
_binary("sub", lambda b, x, y, z, dz: (dz, b.op("neg", dz)), linear=_BOTH)
_binary(
    "mul",
    lambda b, x, y, z, dz: (b.op("mul", dz, y), b.op("mul", dz, x)),
    zeros=(0, 1),
    linear=_EACH,
)
_binary(
    "div",
    lambda b, x, y, z, dz: (b.op("div", dz, y), b.op("neg", b.op("div", b.op("mul", dz, z), y))),
    4,
    zeros=(0,),
    linear=_FIRST,
)
_binary(
    "div_no_nan",
    lambda b, x, y, z, dz: (
        b.op("div_no_nan", dz, y),
        b.op("neg", b.op("div_no_nan", b.op("mul", dz, z), y)),
    ),
    4,
    zeros=(0,),
    linear=_FIRST,
)


_binary(
    "floor_mod",
    lambda b, x, y, z, dz: (dz, b.op("neg", b.op("mul", dz, b.op("floor_div", x, y)))),
    4,
)


def _atan2_derivative(b: Builder, y: Value, x: Value, z: Value, dz: Value) -> tuple[Value, Value]:
    scaled = b.op("div", dz, b.op("add", b.op("square", x), b.op("square", y)))
    return b.op("mul", x, scaled), b.op("neg", b.op("mul", y, scaled))


_binary("atan2", _atan2_derivative, 20)


def _squared_difference_derivative(
    b: Builder, x: Value, y: Value, z: Value, dz: Value
) -> tuple[Value, Value]:
    dx = b.op("mul", dz, b.op("mul", b.op("sub", x, y), 2.0))
    return dx, b.op("neg", dx)


def _pow_derivative(
    b: Builder, x: Value, y: Value, z: Value, dz: Value
) -> tuple[Value, Optional[Value]]:
    """d x^y = y x^(y-1) dx + x^y log x dy, with log x taken as 0 where x <= 0."""
    dx = b.op("mul", dz, b.op("mul", y, b.op("pow", x, b.op("sub", y, 1.0))))
    if y.constant is not None:
        return dx, None
    zero = b.constant(0.0, x.dtype)
    positive = b.op("greater", x, zero)
    safe = b.op("select", positive, x, b.constant(1.0, x.dtype))
    return dx, b.op("mul", dz, b.op("mul", z, b.op("log", safe)))


def _choice_derivative(comparison: str) -> Any:
    """For maximum and minimum: the cotangent goes to the operand that was selected."""

    def derivative(b: Builder, x: Value, y: Value, z: Value, dz: Value) -> tuple[Value, Value]:
        first = b.op(comparison, x, y)
        zero = b.constant(0.0, dz.dtype)
        return b.op("select", first, dz, zero), b.op("select", first, zero, dz)

    return derivative


_binary("squared_difference", _squared_difference_derivative, 2)
_binary("pow", _pow_derivative, 20)
_binary("maximum", _choice_derivative("greater_equal"))
_binary("minimum", _choice_derivative("less_equal"))


def _select_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """select(condition, a, b): a where condition, else b; all three broadcast."""
    shape = broadcast_shapes([value.shape for value in inputs])
    return [TensorType(inputs[1].dtype, shape)]


def _select_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    condition, x, y = node.inputs
    dz = dys[0]
    if dz is None:
        return [None, None, None]
    zero = b.constant(0.0, dz.dtype)
    dx = b.op("select", condition, dz, zero)
    dy = b.op("select", condition, zero, dz)
    return [None, sum_to(b, dx, x), sum_to(b, dy, y)]


register(
    "select",
    _select_infer,
    _select_vjp,
    rows=rows.elementwise,
    elementwise=True,
    broadcasts=True,
    linear=((1, 2),),
    flops=element_flops(1),
)


def _cast_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """cast(x; dtype)"""
    return [inputs[0].type.with_dtype(attrs["dtype"])]


def _cast_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    (x,), dy = node.inputs, dys[0]
    if dy is None or not x.type.is_floating or not dy.type.is_floating:
        return [None]
    return [b.op("cast", dy, dtype=x.dtype)]


register(
    "cast",
    _cast_infer,
    _cast_vjp,
    rows=rows.elementwise,
    elementwise=True,
    linear=_FIRST,
    flops=element_flops(0),
)


def _stop(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    return [None]


register(
    "stop_gradient",
    same_as_first,
    _stop,
    rows=rows.elementwise,
    elementwise=True,
    repeats=True,
    linear=_FIRST,
    flops=element_flops(0),
)
