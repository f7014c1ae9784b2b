"""The adjoint of broadcasting: summing a cotangent back to an operand's shape.

Used by gradient rules of several families.
"""

from __future__ import annotations

from cerebras_tf.ir import Value
from cerebras_tf.ops.builder import Builder


def sum_to(b: Builder, dy: Value, like: Value) -> Value:
    """Sums `dy` over the axes along which `like` was broadcast, to `like`'s shape."""
    if dy.shape == like.shape:
        return dy
    if not (dy.type.is_bounded and like.type.is_bounded):
        return b.op("sum_to_like", dy, like)
    extra = dy.type.rank - like.type.rank
    padded = (1,) * extra + like.shape
    axes = tuple(i for i, (a, c) in enumerate(zip(dy.shape, padded)) if c == 1 and a != 1)
    total = b.op("sum", dy, axes=axes, keepdims=True) if axes else dy
    if total.shape == like.shape:
        return total
    return b.op("reshape", total, shape=like.shape)
