"""Lowerings of TensorFlow's elementwise ops, and of ops that map to one IR op of the same inputs.

The gradient ops appear in TensorFlow's own backward graphs; the IR's gradients come from the rules
in ops/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cerebras_tf.capture.cross_wafer import is_cross_wafer_sum
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.ir import Value
from cerebras_tf.ops import Operand
from cerebras_tf.ops.builder import Builder

# TensorFlow op type -> IR op of the same operands.
_RENAMED = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Add": "add",
    "AddV2": "add",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atan2": "atan2",
    "Atanh": "atanh",
    "BesselI0e": "bessel_i0e",
    "BesselI1e": "bessel_i1e",
    "BesselK0e": "bessel_k0e",
    "BesselK1e": "bessel_k1e",
    "Betainc": "betainc",
    "BiasAddV1": "add",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Digamma": "digamma",
    "Div": "div",
    "DivNoNan": "div_no_nan",
    "Equal": "equal",
    "Erf": "erf",
    "Erfc": "erfc",
    "Erfinv": "erfinv",
    "Exp": "exp",
    "Expm1": "expm1",
    "Floor": "floor",
    "FloorDiv": "floor_div",
    "FloorMod": "floor_mod",
    "GatherNd": "gather_nd",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Igamma": "igamma",
    "IgammaGradA": "igamma_grad_a",
    "Igammac": "igammac",
    "Inv": "reciprocal",
    "IsFinite": "is_finite",
    "IsInf": "is_inf",
    "IsNan": "is_nan",
    "Less": "less",
    "LessEqual": "less_equal",
    "Lgamma": "lgamma",
    "Log": "log",
    "Log1p": "log1p",
    "LogSoftmax": "log_softmax",
    "LogicalAnd": "logical_and",
    "LogicalNot": "logical_not",
    "LogicalOr": "logical_or",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Mod": "trunc_mod",
    "Mul": "mul",
    "Ndtri": "ndtri",
    "Neg": "neg",
    "NotEqual": "not_equal",
    "Polygamma": "polygamma",
    "Pow": "pow",
    "RealDiv": "div",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Rint": "round",
    "Round": "round",
    "Rsqrt": "rsqrt",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softmax": "softmax",
    "Softplus": "softplus",
    "Sqrt": "sqrt",
    "Square": "square",
    "SquaredDifference": "squared_difference",
    "StopGradient": "stop_gradient",
    "Sub": "sub",
    "Tan": "tan",
    "Tanh": "tanh",
    "TruncateDiv": "div",
    "TruncateMod": "trunc_mod",
    "Zeta": "zeta",
}
# lambda and alpha of Klambauer et al., Self-Normalizing Neural Networks, 2017.
_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717


@lowers(*_RENAMED)
def _renamed(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op(_RENAMED[op.type], *low.inputs(op))]


@lowers("CheckNumerics", "EnsureShape", "PreventGradient", "Snapshot")
def _forwarded(low: Lowering, op: Operation) -> Sequence[Value]:
    return low.inputs(op)


@lowers("Identity", "Print")
def _identity(low: Lowering, op: Operation) -> Sequence[Value]:
    if is_cross_wafer_sum(op):  # a session with one wafer drops it
        return [low.b.op("wafer_sum", *low.inputs(op))]
    return [low.value(op.inputs[0])]


@lowers("AddN", "AccumulateNV2")
def _add_n(low: Lowering, op: Operation) -> Sequence[Value]:
    total, *others = low.inputs(op)
    for value in others:
        total = low.b.op("add", total, value)
    return [total]


def cast(b: Builder, x: Value, dtype: str) -> Value:
    """x in a dtype; x itself if it has that dtype."""
    return x if x.dtype == dtype else b.op("cast", x, dtype=dtype)


@lowers("Cast")
def _cast(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    return [cast(low.b, x, low.tf_type(op.outputs[0]).dtype)]


@lowers("Select", "SelectV2")
def _select(low: Lowering, op: Operation) -> Sequence[Value]:
    """With a condition vector, Select chooses rows and SelectV2 columns."""
    condition, x, y = low.inputs(op)
    extra = x.type.rank - condition.type.rank
    if op.type == "Select" and condition.type.rank == 1 and extra > 0:
        rows = -1 if condition.shape[0] is None else condition.shape[0]
        condition = low.b.op("reshape", condition, shape=(rows,) + (1,) * extra)
    return [low.b.op("select", condition, x, y)]


def _negative_side(b: Builder, x: Value) -> Value:
    """exp(x) - 1 where x < 0, else 0, even where exp(x) is infinite."""
    return b.op("expm1", b.op("minimum", x, 0.0))


def _unless_zero(b: Builder, x: Value, y: Value, neutral: float) -> Value:
    """y, but `neutral` where x is 0, so that result and gradients are 0 there."""
    return b.op("select", b.op("equal", x, 0.0), b.constant(neutral, y.dtype), y)


def _where(b: Builder, condition: Value, dy: Value, otherwise: Operand) -> Value:
    """dy where the condition holds, else dy * otherwise."""
    other = b.constant(0.0, dy.dtype) if otherwise == 0.0 else b.op("mul", dy, otherwise)
    return b.op("select", condition, dy, other)


def _relu6(b: Builder, x: Value) -> Value:
    """Not minimum(relu(x), 6): the gradient is 0 where x is 6."""
    return b.op("select", b.op("greater_equal", x, 6.0), b.constant(6.0, x.dtype), b.op("relu", x))


def _relu6_grad(b: Builder, dy: Value, x: Value) -> Value:
    inside = b.op("logical_and", b.op("greater", x, 0.0), b.op("less", x, 6.0))
    return _where(b, inside, dy, 0.0)


def _selu(b: Builder, x: Value) -> Value:
    negative = b.op("mul", _negative_side(b, x), _SELU_SCALE * _SELU_ALPHA)
    return b.op("select", b.op("less", x, 0.0), negative, b.op("mul", x, _SELU_SCALE))


def _selu_grad(b: Builder, dy: Value, y: Value) -> Value:
    negative = b.op("mul", dy, b.op("add", y, _SELU_SCALE * _SELU_ALPHA))
    return b.op("select", b.op("less", y, 0.0), negative, b.op("mul", dy, _SELU_SCALE))


def _softsign(b: Builder, x: Value) -> Value:
    return b.op("div", x, b.op("add", b.op("abs", x), 1.0))


def _softsign_grad(b: Builder, dy: Value, x: Value) -> Value:
    return b.op("div", dy, b.op("square", b.op("add", b.op("abs", x), 1.0)))


def _rsqrt_grad(b: Builder, y: Value, dy: Value) -> Value:
    cube = b.op("mul", b.op("square", y), y)
    return b.op("mul", b.op("mul", dy, -0.5), cube)


def _bessel_i(b: Builder, x: Value, order: int) -> Value:
    return b.op("mul", b.op(f"bessel_i{order}e", x), b.op("exp", b.op("abs", x)))


def _bessel_k(b: Builder, x: Value, order: int) -> Value:
    return b.op("mul", b.op(f"bessel_k{order}e", x), b.op("exp", b.op("neg", x)))


# TensorFlow op type -> its output, given a builder and its inputs.
_FORMULAS: dict[str, Callable[..., Value]] = {  # type: ignore[explicit-any]
    "BesselI0": lambda b, x: _bessel_i(b, x, 0),
    "BesselI1": lambda b, x: _bessel_i(b, x, 1),
    "BesselK0": lambda b, x: _bessel_k(b, x, 0),
    "BesselK1": lambda b, x: _bessel_k(b, x, 1),
    "ClipByValue": lambda b, x, low, high: b.op("maximum", b.op("minimum", x, high), low),
    "Elu": lambda b, x: b.op("select", b.op("less", x, 0.0), _negative_side(b, x), x),
    "EluGrad": lambda b, dy, y: _where(b, b.op("greater_equal", y, 0.0), dy, b.op("add", y, 1.0)),
    "InvGrad": lambda b, y, dy: b.op("neg", b.op("mul", dy, b.op("square", y))),
    "ReciprocalGrad": lambda b, y, dy: b.op("neg", b.op("mul", dy, b.op("square", y))),
    "Relu6": _relu6,
    "Relu6Grad": _relu6_grad,
    "ReluGrad": lambda b, dy, x: _where(b, b.op("greater", x, 0.0), dy, 0.0),
    "RsqrtGrad": _rsqrt_grad,
    "Selu": _selu,
    "SeluGrad": _selu_grad,
    "SigmoidGrad": lambda b, y, dy: b.op("mul", dy, b.op("mul", y, b.op("sub", 1.0, y))),
    "SoftplusGrad": lambda b, dy, x: b.op("mul", dy, b.op("sigmoid", x)),
    "Softsign": _softsign,
    "SoftsignGrad": _softsign_grad,
    "SqrtGrad": lambda b, y, dy: b.op("div", b.op("mul", dy, 0.5), y),
    "TanhGrad": lambda b, y, dy: b.op("mul", dy, b.op("sub", 1.0, b.op("square", y))),
    "Xdivy": lambda b, x, y: b.op("div", x, _unless_zero(b, x, y, math.inf)),
    "Xlog1py": lambda b, x, y: b.op("mul", x, b.op("log1p", _unless_zero(b, x, y, 0.0))),
    "Xlogy": lambda b, x, y: b.op("mul", x, b.op("log", _unless_zero(b, x, y, 1.0))),
}


@lowers(*_FORMULAS)
def _formula(low: Lowering, op: Operation) -> Sequence[Value]:
    return [_FORMULAS[op.type](low.b, *low.inputs(op))]


@lowers("LeakyRelu")
def _leaky_relu(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    leak = low.b.op("mul", x, float(op.get_attr("alpha")))
    return [low.b.op("select", low.b.op("greater", x, 0.0), x, leak)]


@lowers("LeakyReluGrad")
def _leaky_relu_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, x = low.inputs(op)
    return [_where(low.b, low.b.op("greater", x, 0.0), dy, float(op.get_attr("alpha")))]
