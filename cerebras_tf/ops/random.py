"""Random tensors, a function of the seeds and of the step, and stochastic rounding.

The same step of the same run always draws the same numbers, on any computer. Seeds are operands, so
that layers that differ only in them share one compiled body.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.registry import Attrs, Flops, always, element_flops, register


def can_draw_from(operands: Sequence[Value]) -> bool:
    """Whether these are a step, int64 [], and seeds, int64 [2].

    Where invocations differ in size, seeds are int64 [3]: the third counts the numbers that earlier
    invocations drew, and the step is ignored. With int64 [4], of a generator whose counter is data,
    the fourth is the lower half of the counter, and step and third number are ignored.
    """
    types = tuple(value.type for value in operands)
    step = TensorType("int64", ())
    return types in [(step, TensorType("int64", (count,))) for count in (2, 3, 4)]


def _random_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """op(step [], seeds [2 or 3]; shape, dtype), and low, high for random_uniform_int"""
    if not can_draw_from(inputs):
        raise GraphError(
            "random op: operands must be the step, an int64 scalar, and its two seeds, int64[2]. "
            f"Received: {list(inputs)}. Cast or join them."
        )
    return [TensorType(attrs["dtype"], tuple(attrs["shape"]))]


def _register(name: str, flops: Flops) -> None:
    register(name, _random_infer, rows=rows.across, draws=always, differentiable=False, flops=flops)


_register("random_uniform", element_flops(20))
_register("random_uniform_int", element_flops(20))
_register("random_normal", element_flops(60))
_register("truncated_normal", element_flops(80))


def _permutation_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """random_permutation(step [], seeds [2 or 3]; size, dtype) -> [size]"""
    return _random_infer(inputs, {"shape": (attrs["size"],), "dtype": attrs["dtype"]})


register(
    "random_permutation",
    _permutation_infer,
    rows=rows.across,
    draws=always,
    differentiable=False,
    flops=element_flops(20),
)


def _key_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """philox_key(seed int64 [2]) -> the seeds of a random op, int64 [2], mixed from two numbers"""
    if inputs[0].type != TensorType("int64", (2,)):
        raise GraphError(f"philox_key: a seed must be int64[2]. Received: {inputs[0]!r}. Cast it.")
    return [inputs[0].type]


register("philox_key", _key_infer, rows=rows.across, differentiable=False, flops=element_flops(50))


def _skip_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """philox_skip(state int64 [3], count []) -> the state after so many numbers

    A state is the lower and upper half of a counter, and a key.
    """
    if inputs[0].type != TensorType("int64", (3,)):
        raise GraphError(
            f"philox_skip: a state must be int64[3]. Received: {inputs[0]!r}. Use Philox."
        )
    return [inputs[0].type]


register("philox_skip", _skip_infer, rows=rows.across, differentiable=False, flops=element_flops(4))


def _rounded_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """round_randomly(x, key): stochastic rounding of x to bfloat16, which keeps its mean"""
    x, key = inputs
    if x.dtype != "float32" or key.type != TensorType("int64", ()):
        raise GraphError(
            "round_randomly: operands must be float32 and an int64 scalar, the key. Received: "
            f"{list(inputs)}. Cast them."
        )
    return [x.type.with_dtype("bfloat16")]


# The random number of an element depends on its position, so rows are not independent.
register(
    "round_randomly",
    _rounded_infer,
    rows=rows.across,
    differentiable=False,
    elementwise=True,
    flops=element_flops(12),
)
