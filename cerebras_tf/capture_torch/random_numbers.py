"""Rules of random numbers. They have PyTorch's distributions, by the project's generator.

A node of the graph and the step decide the numbers, so that they are repeatable and a run resumes
with the same ones. No gradient passes through them, as in PyTorch.
"""

from __future__ import annotations

from typing import Any, Optional

from cerebras_tf.capture_torch.elementwise import Number
from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value


def _drawn(lowering: Lowering, op: str, dtype: str = "float32", **limits: int) -> Value:
    """Numbers of the shape and dtype of the node's result."""
    b, shape = lowering.b, lowering.shape
    return lowering.value(b.op(op, *lowering.draw(), shape=shape, dtype=dtype, **limits))


def _scaled(low: Lowering, drawn: Value, scale: Number, offset: Number) -> Value:
    b = low.b
    for op, number, neutral in (("mul", scale, 1), ("add", offset, 0)):
        if isinstance(number, Value) or number != neutral:
            value = low.value(number)
            drawn = b.op(op, drawn, b.op("stop_gradient", value))
    return drawn


def _of_size(op: str, *names: str) -> None:
    @lowers(*names)
    def rule(low: Lowering, size: Any, dtype: Any) -> Value:
        return _drawn(low, op)


def _like(op: str, name: str) -> None:
    @lowers(name)
    def rule(low: Lowering, x: Value, dtype: Any) -> Value:
        return _drawn(low, op)


_of_size("random_uniform", "rand")
_of_size("random_normal", "randn")
_like("random_uniform", "rand_like")
_like("random_normal", "randn_like")


@lowers("normal_functional")
def _normal_functional(low: Lowering, x: Value, mean: float, std: float) -> Value:
    return _scaled(low, _drawn(low, "random_normal"), std, mean)


@lowers("normal.Tensor_float", "normal.Tensor_Tensor", "normal.float_Tensor")
def _normal(low: Lowering, mean: Number, std: Number) -> Value:
    """No gradient reaches the mean and the deviation, as in PyTorch."""
    return _scaled(low, _drawn(low, "random_normal"), std, mean)


@lowers("exponential")
def _exponential(low: Lowering, x: Value, lambd: float) -> Value:
    """-log(1 - u) / lambda, for u uniform in [0, 1)"""
    drawn = low.b.op("log1p", low.b.op("neg", _drawn(low, "random_uniform")))
    return low.b.op("mul", drawn, -1 / lambd)


@lowers("bernoulli.p")
def _bernoulli_p(low: Lowering, x: Value, p: float) -> Value:
    return _bernoulli(low, low.value(p, "float32"))


@lowers("bernoulli", "bernoulli.Tensor")
def _bernoulli(low: Lowering, x: Value, p: Optional[Value] = None) -> Value:
    drawn = low.b.op("random_uniform", *low.draw(), shape=low.shape, dtype="float32")
    return low.value(low.b.op("less", drawn, low.value(x if p is None else p, "float32")))


@lowers("randint", "randint.low")
def _randint(lowering: Lowering, high: Any, size: Any, dtype: Any, low: Any = 0) -> Value:
    return _integers(lowering, low, high)


@lowers("randint_like", "randint_like.low_dtype")
def _randint_like(lowering: Lowering, x: Value, high: Any, dtype: Any, low: Any = 0) -> Value:
    return _integers(lowering, low, high)


def _integers(low: Lowering, first: Any, end: Any) -> Value:
    if not isinstance(first, int) or not isinstance(end, int):
        raise UnsupportedOpError(
            f"{low.node.target}: low and high must be fixed numbers. Received: {first}, {end}. "
            "Draw with torch.rand, and scale."
        )
    return _drawn(low, "random_uniform_int", "int64", low=first, high=end)


@lowers("randperm")
def _randperm(low: Lowering, n: Any, dtype: Any) -> Value:
    """The order of uniform numbers."""
    (size,) = low.shape
    if not isinstance(size, int):
        raise UnsupportedOpError(
            f"randperm: n must be a fixed number. Received: {size}. Draw in the data loader."
        )
    drawn = low.b.op("random_uniform", *low.draw(), shape=(size,), dtype="float32")
    return low.value(low.b.multi("top_k", drawn, k=size, dtype="int64")[1])
