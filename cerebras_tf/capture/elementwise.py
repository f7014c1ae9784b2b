"""Lowerings of TensorFlow's elementwise ops.

Most are one op under another name; activations without an IR op are written with several. Their
gradients, as TensorFlow's own backward graphs contain them, stand in elementwise_gradients.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebras_tf.capture.cross_wafer import is_cross_wafer_sum
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.ir import Value
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
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Div": "div",
    "DivNoNan": "div_no_nan",
    "Equal": "equal",
    "Erf": "erf",
    "Erfc": "erfc",
    "Exp": "exp",
    "Expm1": "expm1",
    "Floor": "floor",
    "FloorDiv": "floor_div",
    "FloorMod": "floor_mod",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Inv": "reciprocal",
    "IsFinite": "is_finite",
    "IsInf": "is_inf",
    "IsNan": "is_nan",
    "Less": "less",
    "LessEqual": "less_equal",
    "Log": "log",
    "Log1p": "log1p",
    "LogicalAnd": "logical_and",
    "LogicalNot": "logical_not",
    "LogicalOr": "logical_or",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Mod": "trunc_mod",
    "Mul": "mul",
    "Neg": "neg",
    "NotEqual": "not_equal",
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
}
# max |x| and slope of the negative side: Klambauer et al., Self-Normalizing Neural Networks, 2017.
SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717


@lowers(*_RENAMED)
def _renamed(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op(_RENAMED[op.type], *low.inputs(op))]


@lowers("CheckNumerics", "PreventGradient", "Snapshot")
def _forwarded(low: Lowering, op: Operation) -> Sequence[Value]:
    """Ops whose outputs are their inputs: no node."""
    return low.inputs(op)


@lowers("Identity")
def _identity(low: Lowering, op: Operation) -> Sequence[Value]:
    """No node, unless it stands for a sum over wafers."""
    if is_cross_wafer_sum(op):  # the session of one wafer drops it
        return [low.b.op("wafer_sum", *low.inputs(op))]
    return low.inputs(op)


@lowers("AddN", "AccumulateNV2")
def _add_n(low: Lowering, op: Operation) -> Sequence[Value]:
    total, *others = low.inputs(op)
    for value in others:
        total = low.b.op("add", total, value)
    return [total]


@lowers("Cast")
def _cast(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    dtype = low.tf_type(op.outputs[0]).dtype
    return [x if x.dtype == dtype else low.b.op("cast", x, dtype=dtype)]


@lowers("Select", "SelectV2")
def _select(low: Lowering, op: Operation) -> Sequence[Value]:
    """Select, unlike SelectV2, lets a condition vector choose rows instead of columns."""
    condition, x, y = low.inputs(op)
    extra = x.type.rank - condition.type.rank
    if op.type == "Select" and condition.type.rank == 1 and extra > 0:
        rows = -1 if condition.shape[0] is None else condition.shape[0]
        condition = low.b.op("reshape", condition, shape=(rows,) + (1,) * extra)
    return [low.b.op("select", condition, x, y)]


@lowers("ClipByValue")
def _clip_by_value(low: Lowering, op: Operation) -> Sequence[Value]:
    x, lowest, highest = low.inputs(op)
    return [low.b.op("maximum", low.b.op("minimum", x, highest), lowest)]


@lowers("Relu6")
def _relu6(low: Lowering, op: Operation) -> Sequence[Value]:
    """Not minimum(relu(x), 6): where x is 6 the gradient is 0."""
    (x,) = low.inputs(op)
    full = low.b.op("greater_equal", x, 6.0)
    return [low.b.op("select", full, low.b.constant(6.0, x.dtype), low.b.op("relu", x))]


@lowers("LeakyRelu")
def _leaky_relu(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    leak = low.b.op("mul", x, float(op.get_attr("alpha")))
    return [low.b.op("select", low.b.op("greater", x, 0.0), x, leak)]


def _negative_side(b: Builder, x: Value) -> Value:
    """exp(x) - 1 where x < 0, and 0 elsewhere, also where exp(x) is infinite."""
    return b.op("expm1", b.op("minimum", x, 0.0))


@lowers("Elu")
def _elu(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    return [low.b.op("select", low.b.op("less", x, 0.0), _negative_side(low.b, x), x)]


@lowers("Selu")
def _selu(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    negative = low.b.op("mul", _negative_side(low.b, x), SELU_SCALE * SELU_ALPHA)
    positive = low.b.op("mul", x, SELU_SCALE)
    return [low.b.op("select", low.b.op("less", x, 0.0), negative, positive)]


@lowers("Softsign")
def _softsign(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    return [low.b.op("div", x, low.b.op("add", low.b.op("abs", x), 1.0))]


def _unless_zero(b: Builder, x: Value, y: Value, neutral: float) -> Value:
    """y, and `neutral` where x is 0: the y for which result and gradients are 0."""
    return b.op("select", b.op("equal", x, 0.0), b.constant(neutral, y.dtype), y)


@lowers("Xlogy")
def _xlogy(low: Lowering, op: Operation) -> Sequence[Value]:
    """x log(y), and 0 where x is 0 whatever y is."""
    x, y = low.inputs(op)
    return [low.b.op("mul", x, low.b.op("log", _unless_zero(low.b, x, y, 1.0)))]


@lowers("Xlog1py")
def _xlog1py(low: Lowering, op: Operation) -> Sequence[Value]:
    """x log(1 + y), and 0 where x is 0 whatever y is."""
    x, y = low.inputs(op)
    return [low.b.op("mul", x, low.b.op("log1p", _unless_zero(low.b, x, y, 0.0)))]


@lowers("Xdivy")
def _xdivy(low: Lowering, op: Operation) -> Sequence[Value]:
    """x / y, and 0 where x is 0 whatever y is."""
    x, y = low.inputs(op)
    return [low.b.op("div", x, _unless_zero(low.b, x, y, math.inf))]
