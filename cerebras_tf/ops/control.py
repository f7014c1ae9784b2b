"""Structural ops: conditionals, recorded gradients and functions with gradients of their own.

A structural op is registered with a `Structure`: its regions, its gradient, how it is inlined and
what it costs. How it runs is registered in runtime/subprogram.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, Node, Size, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.registry import Attrs, Region, Reverse, Signature, Structure, lookup, register
from cerebras_tf.ops.shape import zeros_like

Cotangents = list[Optional[Value]]


def inline(b: Any, graph: Graph, arguments: Sequence[Value]) -> list[Value]:
    """Emits a graph's nodes at the end of the builder's graph.

    Args:
        b: the builder to emit with.
        arguments: values that stand for the graph's inputs.

    Returns:
        Values that stand for the graph's outputs.
    """
    mapping = dict(zip(graph.inputs, arguments))
    for node in graph.nodes:
        operands = [mapping[value] for value in node.inputs]
        b.source = node.source or b.source
        copies = b.multi(node.op, *operands, **node.attrs)
        mapping.update(zip(node.outputs, copies))
    return [mapping[value] for value in graph.outputs]


def _cond_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """cond(predicate, *operands; then, orelse): outputs of the graph the predicate chooses."""
    then, orelse = attrs["then"], attrs["orelse"]
    for branch in (then, orelse):
        expected = [value.type for value in branch.inputs]
        if [value.type for value in inputs[1:]] != expected:
            raise GraphError(
                f"op cond: operands must fit the branch {branch.name}. "
                f"Received: {list(inputs[1:])}, expected {expected}. Cast or reshape them."
            )
    types = []
    for first, second in zip(then.outputs, orelse.outputs):
        if first.dtype != second.dtype or first.type.rank != second.type.rank:
            raise GraphError(
                "op cond: both branches must return one dtype and rank. "
                f"Received: {first!r} and {second!r}. Cast or reshape one of them."
            )
        dims = tuple(a if a == b else None for a, b in zip(first.shape, second.shape))
        types.append(TensorType(first.dtype, dims))
    return types


_BRANCHES = ("then", "orelse")


def _cond_regions(node: Node) -> list[Region]:
    operands, outputs = range(1, len(node.inputs)), range(len(node.outputs))
    return [Region(node.attrs[key], tuple(operands), tuple(outputs)) for key in _BRANCHES]


def _cond_vjp(b: Builder, node: Node, dys: Cotangents, reverse: Reverse) -> Cotangents:
    """cond of the branches' reverse passes, each of which recomputes its forward values."""
    predicate, operands = node.inputs[0], node.inputs[1:]
    kept = [i for i, dy in enumerate(dys) if dy is not None]
    wrt = [i for i, value in enumerate(operands) if value.type.is_floating]
    given = [dy for dy in dys if dy is not None]
    branches = {}
    for key in _BRANCHES:
        branch: Graph = node.attrs[key]
        inner = Graph(branch.name + "_gradient")
        sub = Builder(inner, b.evaluate)
        arguments = [inner.add_input(v.name, v.type) for v in branch.inputs]
        seeds = [inner.add_input(f"d_{i}", given[j].type) for j, i in enumerate(kept)]
        outputs = inline(sub, branch, arguments)
        found = reverse(sub, [outputs[i] for i in kept], seeds, [arguments[i] for i in wrt])
        inner.outputs = [
            zeros_like(sub, arguments[i]) if dx is None else dx for i, dx in zip(wrt, found)
        ]
        branches[key] = inner
    results = b.multi(node.op, predicate, *operands, *given, **branches)
    answer: Cotangents = [None] * len(node.inputs)
    for i, value in zip(wrt, results):
        answer[i + 1] = value
    return answer


def _cond_inline(b: Builder, node: Node) -> Optional[list[Value]]:
    """Both branches, and a `select` for each output; None if their types differ."""
    predicate, operands = node.inputs[0], node.inputs[1:]
    branches = [node.attrs[key] for key in _BRANCHES]
    if any(x.type != y.type for x, y in zip(*(branch.outputs for branch in branches))):
        return None
    then, orelse = (inline(b, branch, operands) for branch in branches)
    return [
        first if first is second else b.op("select", predicate, first, second)
        for first, second in zip(then, orelse)
    ]


def _cond_signature(
    attrs: Attrs, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
) -> Signature:
    return {key: (list(inputs[1:]), list(outputs)) for key in _BRANCHES}


def _cond_cost(attrs: Attrs) -> tuple[int, int]:
    """That of the more expensive branch."""
    branches = [attrs[key] for key in _BRANCHES]
    return (
        max(branch.flops for branch in branches),
        max(branch.arena_bytes + branch.scratch_bytes for branch in branches),
    )


def _gradient_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """gradient(*ys, *dys, *xs, *stops; ys, dys, xs): cotangents of the xs.

    `ys` and `xs` are counts; `dys` holds, for every y, whether a cotangent is given (else ones).
    """
    start = attrs["ys"] + sum(attrs["dys"])
    return [value.type for value in inputs[start : start + attrs["xs"]]]


def _custom_gradient_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """custom_gradient(*xs, *captured; xs, backward): the xs unchanged.

    `backward` maps (*captured, *dys) to the cotangents named in attribute `gives`.
    """
    return [value.type for value in inputs[: attrs["xs"]]]


def _custom_gradient_vjp(b: Builder, node: Node, dys: Cotangents, reverse: Reverse) -> Cotangents:
    captured = node.inputs[node.attrs["xs"] :]
    seeds = [zeros_like(b, x) if dy is None else dy for x, dy in zip(node.outputs, dys)]
    results = inline(b, node.attrs["backward"], [*captured, *seeds])
    answer: Cotangents = [None] * len(node.inputs)
    for i, value in zip(node.attrs["gives"], results):
        answer[i] = value
    return answer


def _parameter_gradient_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """parameter_gradient(x [, numbers]; variable): the operands unchanged.

    Marks x as the gradient of a loss with respect to a variable, or as rows of it with row numbers
    `numbers`. The reverse pass ends here, see StepGraph.gradients; no pass removes it.
    """
    return [value.type for value in inputs]


def _parameter_gradient_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    return list(dys)


def _fused_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """fused_elementwise(*operands; body): outputs of the body, element by element."""
    return [value.type for value in attrs["body"].outputs]


def _fused_rows(node: Node, axes: int) -> Optional[rows.Rows]:
    """As the ops of the body have it: all elementwise, but for those that look at places."""
    body = [inner for inner in node.attrs["body"].nodes if inner.op != "constant"]
    if any(lookup(inner.op).rows is rows.across for inner in body):
        return None
    return rows.elementwise(node, axes)


def _fused_flops(node: Node) -> Size:
    total: Size = 0
    for inner in node.attrs["body"].nodes:
        cost = lookup(inner.op).flops
        total = total + (cost(inner) if cost is not None else 0)
    return total


_COND = Structure(
    _cond_regions,
    vjp=_cond_vjp,
    inline=_cond_inline,
    compiles_regions=True,
    signature=_cond_signature,
    cost=_cond_cost,
)
register("cond", _cond_infer, rows=rows.across, structure=_COND)
register(
    "parameter_gradient",
    _parameter_gradient_infer,
    _parameter_gradient_vjp,
    rows=rows.across,
    view=True,
)
register("gradient", _gradient_infer, rows=rows.across, differentiable=False, structure=Structure())
register(
    "custom_gradient",
    _custom_gradient_infer,
    rows=rows.across,
    structure=Structure(vjp=_custom_gradient_vjp),
)
register(
    "fused_elementwise",
    _fused_infer,
    rows=_fused_rows,
    differentiable=False,
    structure=Structure(),
    flops=_fused_flops,
)
