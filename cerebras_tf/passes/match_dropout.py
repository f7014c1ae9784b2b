"""Recognises dropout, so that a fused op can draw its random numbers itself.

TensorFlow writes `select(greater_equal(u, rate), mul(x, scale), 0)`, and earlier wrote
`mul(mul(x, scale), cast(greater_equal(u, rate)))`. It changes no graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from cerebras_tf.ir import Node, Value


class DropoutMatch(NamedTuple):
    """What was dropped, step and seeds of its random numbers, and attributes as op attention's."""

    x: Value
    drawn_from: tuple[Value, Value]
    attrs: dict[str, Any]


def match_dropout(
    dropped: Value, users: dict[Value, list[Node]], wanted: set[Value]
) -> Optional[DropoutMatch]:
    """How a value was dropped from another, or None.

    Args:
        dropped: any value.
        users: nodes that read each value.
        wanted: values that must stay; what a match would remove is none of them, nor read twice.
    """
    node = dropped.node
    if node is None or dropped.dtype != "float32":
        return None
    if node.op == "select" and scalar(node.inputs[2]) == 0.0:
        keep, kept = node.inputs[:2]
        inner = [keep, kept]
    elif node.op == "mul":
        casts = [value for value in node.inputs if value.node and value.node.op == "cast"]
        if len(casts) != 1:
            return None
        (cast,) = casts
        (kept,) = (value for value in node.inputs if value is not cast)
        keep = _maker(cast).inputs[0]
        inner = [keep, kept, cast]
    else:
        return None
    x, kept_scale = _unscaled(kept)
    compared = keep.node
    if compared is None or compared.op != "greater_equal":
        return None
    numbers, rate = compared.inputs[0], scalar(compared.inputs[1])
    drawn = numbers.node
    if drawn is None or drawn.op != "random_uniform" or rate is None or not 0 <= rate < 1:
        return None
    if drawn.attrs["dtype"] != "float32" or not numbers.shape == x.shape == dropped.shape:
        return None
    inner = [value for value in (*inner, numbers) if value is not x]
    if any(value in wanted or len(users.get(value, ())) != 1 for value in inner):
        return None
    step, seeds = drawn.inputs
    return DropoutMatch(x, (step, seeds), {"rate": rate, "kept_scale": kept_scale})


def _unscaled(value: Value) -> tuple[Value, float]:
    """x and c of a product x c; the value itself and 1 where it is none."""
    node = value.node
    if node is not None and node.op == "mul":
        for x, c in (node.inputs, node.inputs[::-1]):
            factor = scalar(c)
            if factor is not None:
                return x, factor
    return value, 1.0


def scalar(value: Value) -> Optional[float]:
    """The only element of a constant, or None."""
    constant = value.constant
    return float(constant.reshape(())) if constant is not None and constant.size == 1 else None


def _maker(value: Value) -> Node:
    assert value.node is not None
    return value.node
