"""Lowerings of the elementwise ops that TensorFlow's own gradient code emits.

They are met where a model calls them itself or a gradient stays TensorFlow's. Our own gradients
come from the rules in ops/ instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.capture.elementwise import SELU_ALPHA, SELU_SCALE
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.ir import Value
from cerebras_tf.ops import Operand


def _scaled_where(low: Lowering, condition: Value, dy: Value, otherwise: Operand) -> list[Value]:
    """dy where the condition holds, else dy times `otherwise` (0.0: nothing)."""
    if isinstance(otherwise, float) and otherwise == 0.0:
        other = low.b.constant(0.0, dy.dtype)
    else:
        other = low.b.op("mul", dy, otherwise)
    return [low.b.op("select", condition, dy, other)]


@lowers("ReluGrad")
def _relu_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, features = low.inputs(op)
    return _scaled_where(low, low.b.op("greater", features, 0.0), dy, 0.0)


@lowers("Relu6Grad")
def _relu6_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, features = low.inputs(op)
    b = low.b
    inside = b.op("logical_and", b.op("greater", features, 0.0), b.op("less", features, 6.0))
    return _scaled_where(low, inside, dy, 0.0)


@lowers("LeakyReluGrad")
def _leaky_relu_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, features = low.inputs(op)
    return _scaled_where(low, low.b.op("greater", features, 0.0), dy, float(op.get_attr("alpha")))


@lowers("EluGrad")
def _elu_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, y = low.inputs(op)
    return _scaled_where(low, low.b.op("greater_equal", y, 0.0), dy, low.b.op("add", y, 1.0))


@lowers("SeluGrad")
def _selu_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, y = low.inputs(op)
    negative = low.b.op("mul", dy, low.b.op("add", y, SELU_SCALE * SELU_ALPHA))
    positive = low.b.op("mul", dy, SELU_SCALE)
    return [low.b.op("select", low.b.op("less", y, 0.0), negative, positive)]


@lowers("SoftplusGrad")
def _softplus_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, features = low.inputs(op)
    return [low.b.op("mul", dy, low.b.op("sigmoid", features))]


@lowers("SoftsignGrad")
def _softsign_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    dy, features = low.inputs(op)
    denominator = low.b.op("add", low.b.op("abs", features), 1.0)
    return [low.b.op("div", dy, low.b.op("square", denominator))]


@lowers("TanhGrad")
def _tanh_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    y, dy = low.inputs(op)
    one = low.b.constant(1.0, y.dtype)
    return [low.b.op("mul", dy, low.b.op("sub", one, low.b.op("square", y)))]


@lowers("SigmoidGrad")
def _sigmoid_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    y, dy = low.inputs(op)
    one = low.b.constant(1.0, y.dtype)
    return [low.b.op("mul", dy, low.b.op("mul", y, low.b.op("sub", one, y)))]


@lowers("RsqrtGrad")
def _rsqrt_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    y, dy = low.inputs(op)
    cube = low.b.op("mul", low.b.op("square", y), y)
    return [low.b.op("mul", low.b.op("mul", dy, -0.5), cube)]


@lowers("SqrtGrad")
def _sqrt_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    y, dy = low.inputs(op)
    return [low.b.op("div", low.b.op("mul", dy, 0.5), y)]


@lowers("InvGrad", "ReciprocalGrad")
def _reciprocal_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    y, dy = low.inputs(op)
    return [low.b.op("neg", low.b.op("mul", dy, low.b.op("square", y)))]
