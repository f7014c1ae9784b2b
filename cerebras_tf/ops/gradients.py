"""What gradient rules of several families share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn, Optional

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Node, Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.registry import Vjp

Cotangents = list[Optional[Value]]
# Cotangent of the only output in, cotangents of the inputs out.
Rule = Callable[[Builder, Node, Value], Cotangents]


def of_one_output(rule: Rule) -> Vjp:
    """A gradient rule for an op of one output: where its cotangent is zero, so are the inputs'."""

    @functools.wraps(rule)
    def vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
        dy = dys[0]
        return [None] * len(node.inputs) if dy is None else rule(b, node, dy)

    return vjp


def no_second_derivative(b: Builder, node: Node, dys: Cotangents) -> NoReturn:
    """The rule of fused gradient ops: raises UnsupportedOpError instead of returning zeros."""
    raise UnsupportedOpError(
        f"op {node.op}: must not be differentiated, it is a gradient already. "
        f"Received: a second derivative through '{node.source}'. "
        "Stop the gradient before it, or write the layer with elementwise ops."
    )


def sum_to(b: Builder, dy: Value, like: Value) -> Value:
    """Sums `dy` over the axes along which `like` was broadcast, to `like`'s shape."""
    if dy.shape == like.shape:
        return dy
    if not (dy.type.is_bounded and like.type.is_bounded):
        return b.op("sum_to_like", dy, like)
    padded = (1,) * (dy.type.rank - like.type.rank) + like.shape
    axes = tuple(i for i, (a, c) in enumerate(zip(dy.shape, padded)) if c == 1 and a != 1)
    total = b.op("sum", dy, axes=axes, keepdims=True) if axes else dy
    return total if total.shape == like.shape else b.op("reshape", total, shape=like.shape)
