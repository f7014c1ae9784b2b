"""Rules of elementwise ops: arithmetic, comparisons, activations, selection, casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch

from cerebras_tf.capture_torch.lowering import DTYPES, Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value

Number = Any  # a Value, a Python number or a size
# From here on, softplus(x) is x in float32.
_SAME_SOFTPLUS = 20


def _binary(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Number, other: Number) -> Value:
        return low.b.op(op, low.value(x), low.value(other))


def _scaled(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Number, other: Number, alpha: Number) -> Value:
        scaled = low.value(other)
        if alpha != 1:
            scaled = low.b.op("mul", scaled, low.value(alpha))
        return low.b.op(op, low.value(x), scaled)


def _comparison(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Number, other: Number) -> Value:
        dtype = low.common_dtype(x, other)
        return low.b.op(op, low.value(x, dtype), low.value(other, dtype))


def _chosen(low: Lowering, op: str, first: Value, second: Value, share: float = 0.5) -> Value:
    """maximum or minimum; where both are equal, the first gets this share of the gradient."""
    b = low.b
    if share == 0:
        first, second = second, first
    chosen = b.op(op, first, second)
    if share != 0.5 or not low.differentiates or not chosen.type.is_floating:
        return chosen
    mean = b.op("add", b.op("mul", first, 0.5), b.op("mul", second, 0.5))
    return b.op("select", b.op("equal", first, second), mean, chosen)


def _choice(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Value, other: Value) -> Value:
        return _chosen(low, op, low.value(x), low.value(other))


def _clamp_share(as_tensor: bool) -> float:
    """The gradient of clamp where an element equals the limit; versions of torch differ."""
    with torch.inference_mode(False), torch.enable_grad():
        x, limit = torch.zeros(1, device="cpu", requires_grad=True), torch.zeros(1, device="cpu")
        x.clamp(max=limit if as_tensor else 0.0).backward()
        return float(x.grad if x.grad is not None else 0)


def _unary(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Value) -> Value:
        return low.b.op(op, low.value(x))


def _test(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Value) -> Value:
        if not x.type.is_floating:
            return low.b.op("broadcast_to", low.value(op == "is_finite"), shape=x.shape)
        return low.b.op(op, x)


def _logical(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Value, other: Value) -> Value:
        return low.b.op(op, low.value(x, "bool"), low.value(other, "bool"))


_scaled("add", "add.Tensor", "add.Scalar")
_scaled("sub", "sub.Tensor", "sub.Scalar")
_binary("mul", "mul.Tensor", "mul.Scalar")
_binary("atan2", "atan2")
_choice("maximum", "maximum", "max.other")
_choice("minimum", "minimum", "min.other")
for _op, _name in {
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
}.items():
    _comparison(_op, f"{_name}.Tensor", f"{_name}.Scalar")
for _name in (
    "abs",
    "ceil",
    "floor",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sign",
    "sqrt",
    "square",
):
    _unary(_name, _name)
for _name in ("cos", "erf", "erfc", "exp", "expm1", "log", "log1p", "sigmoid", "sin", "tanh"):
    _unary(_name, _name)
for _name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan"):
    _unary(_name, _name)
for _name in ("finite", "inf", "nan"):
    _test(f"is_{_name}", f"is{_name}")
for _op, _name in {"logical_and": "and", "logical_or": "or"}.items():
    _logical(_op, f"logical_{_name}")


def _bitwise(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, x: Value, other: Value) -> Value:
        if low.dtype != "bool":
            raise UnsupportedOpError(
                f"{low.node.target}: must be an operation on bool. Received: {low.dtype}."
            )
        return low.b.op(op, x, other)


_bitwise("logical_and", "bitwise_and.Tensor", "__and__.Tensor")
_bitwise("logical_or", "bitwise_or.Tensor", "__or__.Tensor")
_bitwise("not_equal", "bitwise_xor.Tensor", "__xor__.Tensor")


@lowers("logical_not")
def _not(low: Lowering, x: Value) -> Value:
    return low.b.op("logical_not", low.value(x, "bool"))


@lowers("bitwise_not")
def _bitwise_not(low: Lowering, x: Value) -> Value:
    return _not(low, x) if x.dtype == "bool" else low.b.op("sub", low.value(-1), x)


@lowers("floor_divide", "floor_divide.Scalar")
def _floor_divide(low: Lowering, x: Number, other: Number) -> Value:
    return low.b.op("floor_div", low.value(x), low.value(other))


@lowers("remainder.Tensor", "remainder.Scalar")
def _remainder(low: Lowering, x: Number, other: Number) -> Value:
    return low.b.op("floor_mod", low.value(x), low.value(other))


@lowers("rsub.Scalar", "rsub.Tensor")
def _rsub(low: Lowering, x: Number, other: Number, alpha: Number) -> Value:
    scaled = low.value(x)
    if alpha != 1:
        scaled = low.b.op("mul", scaled, low.value(alpha))
    return low.b.op("sub", low.value(other), scaled)


@lowers("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(low: Lowering, x: Number, other: Number, rounding_mode: Optional[str]) -> Value:
    """Rounding toward zero is exact for integers, and that of the quotient for others."""
    b, first, second = low.b, low.value(x), low.value(other)
    if rounding_mode != "trunc":
        return b.op("div" if rounding_mode is None else "floor_div", first, second)
    if not first.type.is_floating:
        return b.op("floor_div", b.op("sub", first, b.op("trunc_mod", first, second)), second)
    quotient = b.op("div", first, second)
    return b.op("mul", b.op("sign", quotient), b.op("floor", b.op("abs", quotient)))


@lowers("fmod.Scalar", "fmod.Tensor")
def _fmod(low: Lowering, x: Number, other: Number) -> Value:
    """The exact remainder, with the gradients of x - trunc(x / other) other."""
    b, first, second = low.b, low.value(x), low.value(other)
    found = b.op("trunc_mod", first, second)
    if not low.differentiates or not found.type.is_floating:
        return found
    # Both differences are 0.
    linear = b.op("sub", first, b.op("stop_gradient", first))
    change = b.op("sub", second, b.op("stop_gradient", second))
    change = b.op("mul", _div_mode(low, x, other, "trunc"), change)
    return b.op("add", found, b.op("sub", linear, change))


@lowers("div.Tensor", "div.Scalar")
def _div(low: Lowering, x: Number, other: Number) -> Value:
    return low.b.op("div", low.value(x), low.value(other))


@lowers("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(low: Lowering, x: Number, exponent: Number) -> Value:
    b, base = low.b, low.value(x)
    if not isinstance(exponent, Value):
        if exponent == 0:
            return b.op("broadcast_to", low.value(1), shape=low.shape)
        if exponent == 1:
            return base
        if exponent == 2:
            return b.op("square", base)
        if exponent == 3:
            return b.op("mul", b.op("square", base), base)
        if exponent == 0.5:
            return b.op("sqrt", base)
    return b.op("pow", base, low.value(exponent))


@lowers("relu")
def _relu(low: Lowering, x: Value) -> Value:
    return low.b.op("relu", x)


@lowers("silu")
def _silu(low: Lowering, x: Value) -> Value:
    return low.b.op("mul", x, low.b.op("sigmoid", x))


@lowers("gelu")
def _gelu(low: Lowering, x: Value, approximate: str) -> Value:
    """Hendrycks and Gimpel, Gaussian Error Linear Units (2016), section 2."""
    b, half = low.b, low.b.op("mul", x, 0.5)
    if approximate == "none":
        inner = b.op("erf", b.op("mul", x, 1 / math.sqrt(2)))
    else:
        cubed = b.op("mul", b.op("mul", b.op("square", x), x), 0.044715)
        inner = b.op("tanh", b.op("mul", b.op("add", x, cubed), math.sqrt(2 / math.pi)))
    return b.op("mul", half, b.op("add", inner, 1.0))


@lowers("leaky_relu")
def _leaky_relu(low: Lowering, x: Value, negative_slope: float) -> Value:
    return low.b.op(
        "select", low.b.op("greater", x, 0.0), x, low.b.op("mul", x, float(negative_slope))
    )


@lowers("softplus")
def _softplus(low: Lowering, x: Value, beta: float, threshold: float) -> Value:
    """log(1 + exp(beta x)) / beta; x, where beta x exceeds the threshold"""
    b = low.b
    if beta == 1:
        result = b.op("softplus", x)
        if threshold >= _SAME_SOFTPLUS:
            return result
    scaled = b.op("mul", x, float(beta))
    result = b.op("mul", b.op("softplus", scaled), 1 / beta)
    return b.op("select", b.op("greater", scaled, float(threshold)), x, result)


@lowers("log_sigmoid")
def _log_sigmoid(low: Lowering, x: Value) -> Value:
    return low.b.op("neg", low.b.op("softplus", low.b.op("neg", x)))


_CLAMP_SHARES = {as_tensor: _clamp_share(as_tensor) for as_tensor in (False, True)}


@lowers("clamp", "clamp.Tensor")
def _clamp(low: Lowering, x: Value, min: Optional[Number], max: Optional[Number]) -> Value:
    result = low.value(x)
    for op, limit in (("maximum", min), ("minimum", max)):
        if limit is not None:
            share = _CLAMP_SHARES[isinstance(limit, Value)]
            result = _chosen(low, op, result, low.value(limit), share)
    return result


@lowers("clamp_min", "clamp_min.Tensor")
def _clamp_min(low: Lowering, x: Value, min: Number) -> Value:
    return _clamp(low, x, min, None)


@lowers("clamp_max", "clamp_max.Tensor")
def _clamp_max(low: Lowering, x: Value, max: Number) -> Value:
    return _clamp(low, x, None, max)


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(low: Lowering, condition: Value, x: Number, other: Number) -> Value:
    return low.b.op("select", low.value(condition, "bool"), low.value(x), low.value(other))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(low: Lowering, x: Value, mask: Value, value: Number) -> Value:
    return low.b.op("select", mask, low.value(value), x)


@lowers("lerp.Scalar", "lerp.Tensor")
def _lerp(low: Lowering, x: Value, end: Value, weight: Number) -> Value:
    """torch computes from the nearer end: x + w (end - x), or end - (end - x)(1 - w)."""
    b = low.b
    if not isinstance(weight, Value) and weight >= 0.5:
        part = b.op("mul", b.op("sub", end, x), low.value(1 - weight))
        return b.op("sub", end, part)
    return b.op("add", x, b.op("mul", b.op("sub", end, x), low.value(weight)))


@lowers("_foreach_lerp.Scalar")
def _foreach_lerp(
    low: Lowering, x: Sequence[Value], tensors1: Sequence[Value], weight: Number
) -> tuple[Value, ...]:
    return tuple(_lerp(low, start, end, weight) for start, end in zip(x, tensors1))


@lowers("addcmul")
def _addcmul(low: Lowering, x: Value, tensor1: Value, tensor2: Value, value: Number) -> Value:
    b = low.b
    product = b.op("mul", b.op("mul", low.value(tensor1), low.value(value)), low.value(tensor2))
    return b.op("add", low.value(x), product)


@lowers("addcdiv")
def _addcdiv(low: Lowering, x: Value, tensor1: Value, tensor2: Value, value: Number) -> Value:
    b = low.b
    quotient = b.op("div", b.op("mul", low.value(tensor1), low.value(value)), low.value(tensor2))
    return b.op("add", low.value(x), quotient)


@lowers("_to_copy", "to.dtype", "to.dtype_layout")
def _to(low: Lowering, x: Value, dtype: Optional[torch.dtype]) -> Value:
    return x if dtype is None else low.value(x, DTYPES[dtype])


@lowers("alias", "clone", "contiguous", "lift_fresh_copy")
def _same(low: Lowering, x: Value) -> Value:
    return x


@lowers("type_as")
def _type_as(low: Lowering, x: Value, other: Value) -> Value:
    return low.value(x)


@lowers("fill.Tensor", "fill.Scalar")
def _fill(low: Lowering, x: Value, value: Number) -> Value:
    return low.b.op("broadcast_to", low.value(value), shape=x.shape)


@lowers("copy")
def _copy(low: Lowering, x: Value, src: Value) -> Value:
    found = low.value(src)
    return found if found.shape == x.shape else low.b.op("broadcast_to", found, shape=x.shape)


@lowers("detach")
def _detach(low: Lowering, x: Value) -> Value:
    return low.b.op("stop_gradient", x) if x.type.is_floating else x


@lowers("_local_scalar_dense", "item")
def _item(low: Lowering, x: Value) -> Value:
    """Python computes with float64, and no gradient passes through it."""
    return _detach(low, low.value(x, "float64"))


@lowers("native_dropout")
def _native_dropout(low: Lowering, x: Value, p: float, train: Optional[bool]) -> tuple[Any, ...]:
    """Numbers u are drawn from [0, 1); elements with u < p become 0."""
    if not train or p == 0:
        return x, None
    if p == 1:
        return low.b.op("mul", x, 0.0), None
    step, seeds = low.draw()
    drawn = low.b.op("random_uniform", step, seeds, shape=x.shape, dtype="float32")
    kept = low.b.op("greater_equal", drawn, float(torch.tensor(p, dtype=torch.float32)))
    return low.b.op("select", kept, low.b.op("mul", x, 1 / (1 - p)), low.value(0.0)), None


@lowers("dropout")
def _dropout(low: Lowering, x: Value, p: float, train: bool) -> Value:
    value: Value = _native_dropout(low, x, p, train)[0]
    return value
