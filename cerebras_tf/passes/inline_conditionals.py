"""Turns cheap conditionals into `select`: both sides run and one result is taken.

Before: `%y = cond(%p, %x) {then; orelse}`; after: both bodies in place and `%y = select(%p, ...)`.
This lets an optimizer step guarded by a loss-scale test fuse with its update. It must not inline
branches that hold costly ops or draw random numbers.
"""

from __future__ import annotations

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, lookup
from cerebras_tf.ops.control import inline


def inline_conditionals(graph: Graph) -> None:
    """Inlines in place, inner conditionals first."""
    nodes = graph.nodes
    graph.nodes = []
    b = Builder(graph, evaluate)
    mapping: dict[Value, Value] = {}
    for node in nodes:
        node.inputs = [mapping.get(value, value) for value in node.inputs]
        if node.op == "cond":
            for branch in node.subgraphs.values():
                inline_conditionals(branch)
        if node.op == "cond" and _is_cheap(node):
            b.source, b.layer, b.direction = node.source, node.layer, node.direction
            mapping.update(zip(node.outputs, _select(b, node)))
        else:
            graph.nodes.append(node)
    graph.replace(mapping)


def _is_cheap(node: Node) -> bool:
    same = all(
        a.type == b.type for a, b in zip(node.attrs["then"].outputs, node.attrs["orelse"].outputs)
    )
    return same and all(_cheap_branch(branch) for branch in node.subgraphs.values())


def _cheap_branch(branch: Graph) -> bool:
    return all(lookup(node.op).cheap for node in branch.nodes)


def _select(b: Builder, node: Node) -> list[Value]:
    predicate, operands = node.inputs[0], node.inputs[1:]
    then = inline(b, node.attrs["then"], operands)
    orelse = inline(b, node.attrs["orelse"], operands)
    return [
        first if first is second else b.op("select", predicate, first, second)
        for first, second in zip(then, orelse)
    ]
