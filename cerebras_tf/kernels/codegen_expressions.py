"""How each elementwise op is written in the source of a generated kernel.

One line an op. `{0}` is the first operand; `{one}` and the like are constants of its dtype. What an
op means stands in elementwise.py; a test compares the two.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from cerebras_tf.kernels.half_precision import to_bfloat16, to_float32

INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")

# Ops of every dtype.
_ANY = {
    "identity": "{0}",
    "stop_gradient": "{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "square": "{0} * {0}",
    "squared_difference": "({0} - {1}) * ({0} - {1})",
    "neg": "-{0}",
    "maximum": "{0} if ({0} > {1}) | ({0} != {0}) else {1}",
    "minimum": "{0} if ({0} < {1}) | ({0} != {0}) else {1}",
    "relu": "{zero} if {0} < {zero} else {0}",
    "sign": "{one} if {0} > {zero} else (-{one} if {0} < {zero} else {0})",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "floor_mod": "{0} % {1}",
}
_BOOL = {
    **{op: _ANY[op] for op in ("identity", "stop_gradient", "equal", "not_equal")},
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_not": "not {0}",
}
_INTEGER = {
    **_ANY,
    "abs": "abs({0})",
    "div": "np.float64({0}) / np.float64({1})",
    "floor_div": "{0} // {1}",
    "trunc_mod": "abs({0}) % abs({1}) * (1 if {0} >= 0 else -1)",
    "pow": "{0} ** {1}",
}
_FLOAT = {
    **_ANY,
    "abs": "fabs({0})",
    "sqrt": "sqrt({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round": "rint({0})",
    "is_nan": "{0} != {0}",
    "is_inf": "fabs({0}) == {inf}",
    "is_finite": "fabs({0}) < {inf}",
    "div": "{0} / {1}",
    "div_no_nan": "{zero} if {1} == {zero} else {0} / {1}",
    "floor_div": "floor({0} / {1})",
    "trunc_mod": "np.fmod({0}, {1})",
    "reciprocal": "{one} / {0}",
    "rsqrt": "{one} / sqrt({0})",
    # Of numbers that are 0, the reciprocal tells the sign.
    "masked_like": "{0} if ({0} == {zero}) & ({one} / {0} < {zero}) else {1} + {zero}",
}
_LIBRARY = ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf")
# Rare ones, computed in float64 by C's library for every dtype.
_RARE = ("tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erfc")
_FROM_C = {
    **{op: f"math.{op}(np.float64({{0}}))" for op in _RARE},
    "atan2": "math.atan2(np.float64({0}), np.float64({1}))",
}
_FLOAT32 = {
    **_FLOAT,
    **_FROM_C,
    **{op: f"vector.{op}({{0}})" for op in (*_LIBRARY, "sigmoid", "softplus")},
    "pow": "vector.power({0}, {1})",
    "round_randomly": "rounded_randomly({0}, place, {1})",
}
_FLOAT64 = {
    **_FLOAT,
    **_FROM_C,
    **{op: f"math.{op}({{0}})" for op in _LIBRARY},
    "pow": "math.pow({0}, {1})",
    "sigmoid": "({one} if {0} >= {zero} else math.exp({0})) / ({one} + math.exp(-abs({0})))",
    "softplus": "({0} if {0} > {zero} else {zero}) + math.log1p(math.exp(-abs({0})))",
}
_TABLES = {
    "bool": _BOOL,
    **dict.fromkeys(INTEGERS, _INTEGER),
    "float16": _FLOAT32,
    "bfloat16": _FLOAT32,
    "float32": _FLOAT32,
    "float64": _FLOAT64,
}
# Ops whose result depends on an element's number, which the kernel calls `place`.
PLACED = ("round_randomly",)
_ROUNDING = {"float16": "half", "bfloat16": "nearest_bfloat16"}
# x^n by multiplications, for the exponents that models use.
_POWERS = {
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
    -1.0: "{one} / {0}",
    -2.0: "{one} / ({0} * {0})",
}


def python_type(dtype: str) -> str:
    """The constructor of a value in a register: half precision is held in float32."""
    return {"float16": "np.float32", "bfloat16": "np.float32", "bool": "bool"}.get(
        dtype, f"np.{dtype}"
    )


def literal(value: Any, dtype: str) -> str:
    """Source of a constant, exact to the last bit."""
    number = np.asarray(value).reshape(-1)[0]
    if dtype == "bool":
        return str(bool(number))
    if "float" not in dtype:
        return f"{python_type(dtype)}({int(number)})"
    if dtype == "bfloat16":  # a constant's array holds float32
        number = to_float32(to_bfloat16(number))
    text = float(number).hex() if np.isfinite(number) else str(float(number))
    return f"{python_type(dtype)}(float.fromhex({text!r}))"


def can_write(op: str, dtype: str) -> bool:
    """Whether an op of operands of this dtype (for select, of its choices) can be generated."""
    return op in ("cast", "select") or op in _TABLES.get(dtype, {})


def expression(
    op: str, dtype: str, operands: list[str], out_dtype: str, exponent: Optional[float]
) -> str:
    """Source of one op's value, of type out_dtype.

    Args:
        op: an op for which can_write holds.
        dtype: of its operands.
        operands: names of variables.
        out_dtype: of the result.
        exponent: the second operand's value where it is a constant.
    """
    if op == "cast":
        text = f"{operands[0]} != 0" if out_dtype == "bool" else operands[0]
    elif op == "select":
        text = f"{operands[1]} if {operands[0]} else {operands[2]}"
    else:
        form = _TABLES[dtype][op]
        if op == "pow" and exponent in _POWERS:
            form = _POWERS[exponent]
        kind = "FLOAT64" if dtype == "float64" else "FLOAT32"
        integral = dtype in INTEGERS
        form = form.replace("{zero}", "0" if integral else f"{kind}_ZERO")
        form = form.replace("{one}", "1" if integral else f"{kind}_ONE")
        text = form.replace("{inf}", f"{kind}_INF").format(*operands)
    text = f"{python_type(out_dtype)}({text})"
    if op in PLACED:  # rounds itself
        return text
    return f"{_ROUNDING[out_dtype]}({text})" if out_dtype in _ROUNDING else text
