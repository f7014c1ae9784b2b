"""Replaces every `gradient` node by the reverse pass written out in ops.

Before: `%dw = gradient(%loss, %w) {ys=1, dys=(False,), xs=1}`; after: the vjp rules of the nodes
between %w and %loss, last first, cotangents of values with several uses added up. It must not
look into what ops mean: rules come from the op table. Source: reverse-mode accumulation, Griewank
and Walther, Evaluating Derivatives, 2nd ed., chapter 3.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from cerebras_tf.errors import GradientError, SizeLimitError, UnsupportedOpError
from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, lookup
from cerebras_tf.ops.control import inline
from cerebras_tf.ops.shape import broadcast_as
from cerebras_tf.passes.rewrite import rewrite


def differentiate(graph: Graph) -> None:
    """Expands all `gradient` nodes of a graph in place, in order.

    Raises:
        GradientError: an op on the way has no gradient rule; the message lists all of them. Or
            one has a rule that cannot be followed here.
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
    return [_zeros(b, x) if dx is None else dx for x, dx in zip(xs, found)]


def reverse(
    b: Builder, ys: list[Value], dys: list[Value], xs: list[Value], stops: list[Value]
) -> list[Optional[Value]]:
    """Emits the reverse pass from ys to xs behind the builder's graph.

    Args:
        b: builder whose graph holds the nodes between xs and ys.
        ys: differentiated values.
        dys: their cotangents, of the same types.
        xs: values to differentiate by.
        stops: values behind which nothing is differentiated.

    Returns:
        Cotangent of every x; None where no y depends on it.
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
    """Sum of the cotangents that reached a value; kept as the only one."""
    parts = cotangents.get(value)
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = b.op("add", total, part)
    cotangents[value] = [total]
    return total


def _vjp(b: Builder, node: Node, dys: list[Optional[Value]]) -> list[Optional[Value]]:
    if node.op == "cond":
        return _cond_vjp(b, node, dys)
    if node.op == "custom_gradient":
        return _custom_vjp(b, node, dys)
    rule = lookup(node.op).vjp
    assert rule is not None  # _refuse_missing_rules has run
    try:
        return rule(b, node, dys)
    except SizeLimitError:  # says for which sizes there is one
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
        known = lookup(node.op).vjp is not None or lookup(node.op).structural
        if not known and any(value in depends for value in node.inputs):
            missing[node.op] = node
    if missing:
        listed = ", ".join(f"{op} ('{node.source}')" for op, node in sorted(missing.items()))
        raise GradientError(
            "differentiation: every op between weights and loss must have a gradient rule. "
            f"Received: {listed} without one. Add a vjp in cerebras_tf/ops/ or stop the gradient."
        )


def _cond_vjp(b: Builder, node: Node, dys: list[Optional[Value]]) -> list[Optional[Value]]:
    """cond of the branches' reverse passes; each computes its forward values again."""
    predicate, operands = node.inputs[0], node.inputs[1:]
    kept = [i for i, dy in enumerate(dys) if dy is not None]
    wrt = [i for i, value in enumerate(operands) if value.type.is_floating]
    given = [dy for dy in dys if dy is not None]
    branches = {}
    for key in ("then", "orelse"):
        branch: Graph = node.attrs[key]
        inner = Graph(branch.name + "_gradient")
        sub = Builder(inner, evaluate)
        arguments = [inner.add_input(v.name, v.type) for v in branch.inputs]
        seeds = [inner.add_input(f"d_{i}", given[j].type) for j, i in enumerate(kept)]
        outputs = inline(sub, branch, arguments)
        found = reverse(sub, [outputs[i] for i in kept], seeds, [arguments[i] for i in wrt], [])
        inner.outputs = [
            _zeros(sub, arguments[i]) if dx is None else dx for i, dx in zip(wrt, found)
        ]
        branches[key] = inner
    results = b.multi("cond", predicate, *operands, *given, **branches)
    answer: list[Optional[Value]] = [None] * len(node.inputs)
    for i, value in zip(wrt, results):
        answer[i + 1] = value
    return answer


def _custom_vjp(b: Builder, node: Node, dys: list[Optional[Value]]) -> list[Optional[Value]]:
    count = node.attrs["xs"]
    captured = node.inputs[count:]
    seeds = [_zeros(b, x) if dy is None else dy for x, dy in zip(node.outputs, dys)]
    results = inline(b, node.attrs["backward"], [*captured, *seeds])
    answer: list[Optional[Value]] = [None] * len(node.inputs)
    for i, value in zip(node.attrs["gives"], results):
        answer[i] = value
    return answer


def _ones(b: Builder, like: Value) -> Value:
    return _filled(b, like, 1)


def _zeros(b: Builder, like: Value) -> Value:
    return _filled(b, like, 0)


def _filled(b: Builder, like: Value, number: int) -> Value:
    scalar = b.constant(np.asarray(number, like.type.numpy_dtype), like.dtype)
    return broadcast_as(b, scalar, like)
