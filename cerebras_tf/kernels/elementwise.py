"""Plain kernels of the elementwise ops: the definitions. codegen.py has the fused forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cerebras_tf.kernels.registry import plain

_UFUNCS: dict[str, Any] = {
    "neg": np.negative,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "square": np.square,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "is_finite": np.isfinite,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "logical_not": np.logical_not,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
    "floor_mod": np.mod,
    "trunc_mod": np.fmod,
    "atan2": np.arctan2,
    "select": np.where,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
}


def _define(name: str, ufunc: Any) -> None:
    @plain(name)
    def kernel(*operands):
        result = ufunc(*operands)
        if name == "select":
            return result.astype(np.asarray(operands[1]).dtype, copy=False)
        if name in ("erf", "erfc"):
            return result.astype(operands[0].dtype)
        return np.asarray(result)


for _name, _ufunc in _UFUNCS.items():
    _define(_name, _ufunc)


@plain("reciprocal")
def reciprocal(x):
    """1 / x."""
    return np.asarray(np.divide(x.dtype.type(1), x))


@plain("rsqrt")
def rsqrt(x):
    """1 / sqrt(x)."""
    return np.asarray(np.divide(x.dtype.type(1), np.sqrt(x)))


@plain("sigmoid")
def sigmoid(x):
    """1 / (1 + exp(-x)), from the side on which exp does not overflow."""
    z = np.exp(-np.abs(x))
    one = x.dtype.type(1)
    return np.asarray(np.where(x >= 0, one / (one + z), z / (one + z)))


@plain("softplus")
def softplus(x):
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    return np.asarray(np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x))))


@plain("relu")
def relu(x):
    """max(x, 0)."""
    return np.maximum(x, x.dtype.type(0))


@plain("div")
def div(x, y):
    """x / y; integers divide towards zero, as TensorFlow's Div does."""
    if np.issubdtype(x.dtype, np.integer):
        return np.asarray(np.trunc(np.true_divide(x, y)).astype(x.dtype))
    return np.asarray(np.true_divide(x, y))


@plain("floor_div")
def floor_div(x, y):
    """floor(x / y) of the rounded quotient, as in TensorFlow; NumPy uses the exact one."""
    if np.issubdtype(x.dtype, np.integer):
        return np.asarray(np.floor_divide(x, y))
    return np.asarray(np.floor(np.true_divide(x, y)))


@plain("div_no_nan")
def div_no_nan(x, y):
    """x / y, and 0 where y is 0."""
    return np.asarray(np.where(y == 0, x.dtype.type(0), np.true_divide(x, y)))


@plain("squared_difference")
def squared_difference(x, y):
    """(x - y)^2."""
    return np.asarray(np.square(x - y))


@plain("masked_like")
def masked_like(w, x):
    """x, but -0.0 where w is -0.0, which marks a pruned weight; other zeros are +0.0."""
    zero = x.dtype.type(0)
    return np.asarray(np.where((w == 0) & np.signbit(w), -zero, x + zero))


@plain("cast")
def cast(x, *, dtype):
    """x in another dtype; bfloat16 is held as float32."""
    return x.astype("float32" if dtype == "bfloat16" else dtype)


@plain("identity")
def identity(x):
    """x."""
    return x


@plain("parameter_gradient")
def parameter_gradient(x, *numbers, variable):
    """The operands themselves."""
    return (x, *numbers)


@plain("stop_gradient")
def stop_gradient(x):
    """x; only its derivative differs from identity's."""
    return x
