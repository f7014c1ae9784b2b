"""Turns cheap conditionals into `select`: both sides run and one result is taken.

Before: `%y = cond(%p, %x) {then; orelse}`; after: both bodies in place and `%y = select(%p, ...)`.
This lets an optimizer step guarded by a loss-scale test fuse with its update. It must not inline
branches that hold costly ops or draw random numbers.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder, lookup
from cerebras_tf.ops.control import inline
from cerebras_tf.passes.rewrite import rewrite


def inline_conditionals(graph: Graph) -> None:
    """Inlines in place, inner conditionals first."""
    rewrite(graph, _inlined)


def _inlined(b: Builder, node: Node) -> Optional[list[Value]]:
    if node.op != "cond":
        return None
    for branch in node.subgraphs.values():
        inline_conditionals(branch)
    return _select(b, node) if _is_cheap(node) else None


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
