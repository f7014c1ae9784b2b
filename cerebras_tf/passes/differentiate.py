"""Replaces every `gradient` node by the reverse pass written out in ops.

Before: `%dw = gradient(%loss, %w) {ys=1, dys=(False,), xs=1}`; after: the vjp rules of the nodes
between %w and %loss, last first, with cotangents of values with several uses summed. Source:
reverse-mode accumulation, Griewank and Walther, Evaluating Derivatives, 2nd ed., chapter 3.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Optional

import numpy as np

from cerebras_tf.errors import GradientError, SizeLimitError, UnsupportedOpError
from cerebras_tf.ir import Graph, Node, Size, Value
from cerebras_tf.ops import Builder, lookup
from cerebras_tf.ops.shape import broadcast_as, zeros_like
from cerebras_tf.passes.rewrite import rewrite


def differentiate(graph: Graph) -> None:
    """Expands all `gradient` nodes of a graph in place, in order.

    Raises:
        GradientError: ops between xs and ys have no gradient rule, or one that does not apply.
    """
    # Backward graphs of custom gradients may take gradients themselves.
    rewrite(graph, _expand, again=True)


def _expand(b: Builder, node: Node) -> Optional[list[Value]]:
    if node.op != "gradient":
        return None
    b.direction, b.layer = "backward", -1
    count, given = node.attrs["ys"], node.attrs["dys"]
    ys = node.inputs[:count]
    rest = iter(node.inputs[count:])
    dys = [next(rest) if has else None for has in given]
    operands = list(rest)
    xs, stops = operands[: node.attrs["xs"]], operands[node.attrs["xs"] :]
    seeds = [_ones(b, y) if dy is None else dy for y, dy in zip(ys, dys)]
    found = reverse(b, ys, seeds, xs, stops)
    return [zeros_like(b, x) if dx is None else dx for x, dx in zip(xs, found)]


def reverse(
    b: Builder, ys: list[Value], dys: list[Value], xs: list[Value], stops: Collection[Value] = ()
) -> list[Optional[Value]]:
    """Emits the reverse pass from ys to xs at the end of the builder's graph.

    Args:
        b: builder whose graph holds the nodes between xs and ys.
        ys: differentiated values.
        dys: their cotangents, of the same types.
        xs: values to differentiate by.
        stops: values whose cotangents are not propagated.

    Returns:
        Cotangent of every x; None if no y depends on it.
    """
    forward = list(b.graph.nodes)
    wanted = set(xs)
    depends = _descendants(forward, wanted, set(stops) - wanted)
    _refuse_missing_rules(forward, ys, depends)
    cotangents: dict[Value, list[Value]] = {}
    for y, dy in zip(ys, dys):
        if y in depends:
            cotangents.setdefault(y, []).append(dy)
    for node in reversed(forward):
        if not any(value in depends for value in node.outputs):
            continue
        b.source, b.layer = node.source, node.layer
        incoming = [_total(b, cotangents, value) for value in node.outputs]
        if all(dy is None for dy in incoming):
            continue
        for value, dx in zip(node.inputs, _vjp(b, node, incoming)):
            if dx is not None and value in depends:
                cotangents.setdefault(value, []).append(dx)
    b.layer = -1
    return [_total(b, cotangents, x) for x in xs]


def _descendants(nodes: list[Node], roots: set[Value], stops: set[Value]) -> set[Value]:
    """Values that depend on the roots through differentiable ops."""
    found = set(roots)
    for node in nodes:
        passes_on = lookup(node.op).differentiable and node.op != "stop_gradient"
        if passes_on and any(value in found for value in node.inputs):
            found.update(v for v in node.outputs if v.type.is_floating and v not in stops)
    return found


def _total(b: Builder, cotangents: dict[Value, list[Value]], value: Value) -> Optional[Value]:
    """Sum of the cotangents of a value, which replaces them."""
    parts = cotangents.get(value)
    if not parts:
        return None
    parts = _joined(b, parts)
    total = parts[0]
    for part in parts[1:]:
        total = b.op("add", total, part)
    cotangents[value] = [total]
    return total


def _joined(b: Builder, parts: list[Value]) -> list[Value]:
    """Cotangents of slices that make up a value, as of query, key and value, become one `concat`.

    Otherwise each would be padded to the size of the value.
    """
    slices: dict[int, list[tuple[Size, Value, Value]]] = {}
    for part in parts:
        node = part.node
        if node is not None and node.op == "pad" and node.attrs["value"] == 0:
            paddings = enumerate(node.attrs["paddings"])
            padded = [(axis, pair[0]) for axis, pair in paddings if pair != (0, 0)]
            if len(padded) == 1:
                axis, start = padded[0]
                slices.setdefault(axis, []).append((start, node.inputs[0], part))
    for axis, found in slices.items():
        ordered: list[Value] = []
        end: Size = 0
        while len(following := [x for start, x, _ in found if start == end]) == 1:
            size = following[0].shape[axis]
            if size is None or size == 0:
                break
            ordered += following
            end += size
        if len(ordered) == len(found) > 1 and end == parts[0].shape[axis]:
            padded_parts = {part for _, _, part in found}
            whole = b.op("concat", *ordered, axis=axis)
            return [*(part for part in parts if part not in padded_parts), whole]
    return parts


def _vjp(b: Builder, node: Node, dys: list[Optional[Value]]) -> list[Optional[Value]]:
    known = lookup(node.op)
    try:
        if known.structure is not None:
            assert known.structure.vjp is not None  # _refuse_missing_rules has run
            return known.structure.vjp(b, node, dys, reverse)
        assert known.vjp is not None
        return known.vjp(b, node, dys)
    except SizeLimitError:  # there is one for other sizes
        raise
    except UnsupportedOpError as error:
        raise GradientError(str(error)) from error


def _refuse_missing_rules(nodes: list[Node], ys: list[Value], depends: set[Value]) -> None:
    needed = set(ys)
    missing: dict[str, Node] = {}
    for node in reversed(nodes):
        if not any(value in needed and value in depends for value in node.outputs):
            continue
        needed.update(node.inputs)
        if not lookup(node.op).has_gradient and any(value in depends for value in node.inputs):
            missing[node.op] = node
    if missing:
        listed = ", ".join(f"{op} ('{node.source}')" for op, node in sorted(missing.items()))
        raise GradientError(
            "differentiation: every op between weights and loss must have a gradient rule. "
            f"Received: {listed} without one. Add a vjp in cerebras_tf/ops/ or stop the gradient."
        )


def _ones(b: Builder, like: Value) -> Value:
    one = b.constant(np.asarray(1, like.type.numpy_dtype), like.dtype)
    return broadcast_as(b, one, like)
