"""Separates what a norm of all gradients reads from what the updates read.

Before: `%u = mul(%g, %unscale)  %s = sum_of_squares(%u)  %w' = ... %u ... %norm`: every update
waits for the norm, but its first nodes must run before it, so that all updates would run together.
After: `%v = mul(%g, %unscale)  %s = sum_of_squares(%v)`, and the update has its own %u: the norm is
computed right after the gradients, and updates run layer by layer.

Norms of one variable for its own update only (LAMB) are not separated, and only elementwise nodes
are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import is_view, lookup


def split_norms(graph: Graph, updates: Collection[Value]) -> None:
    """Separates in place.

    Args:
        graph: differentiated, with inlined regions; only nodes of updates have no layer.
        updates: new values of variables.
    """
    own = {n for n in graph.nodes if n.layer < 0 and n.op not in ("constant", GRADIENT)}
    late = _wide_ancestors((value.node for value in updates if not is_scalar(value)), own)
    homes = update_groups([node for node in graph.nodes if node in own])
    copies = _Copies(graph, own, late)
    for node in _norms(graph, own, late, homes):
        copies.separate(node)
    if copies.before:
        graph.nodes = [n for node in graph.nodes for n in (*copies.before.get(node, ()), node)]
        graph.prune()


class _Copies:
    """Copies of what updates read, for norms; `before` lists them by the node that they precede."""

    def __init__(self, graph: Graph, own: set[Node], late: set[Node]) -> None:
        self.before: dict[Node, list[Node]] = {}
        self._graph, self._own, self._late = graph, own, late
        self._copies: dict[Node, Node] = {}

    def separate(self, norm: Node) -> None:
        """Makes the node of a norm read copies, if all that it needs can be copied."""
        needed = _wide_ancestors([norm], self._own) - {norm}
        shared = needed & self._late
        if shared and all(lookup(n.op).elementwise or is_view(n) for n in shared):
            for node in [*(needed - self._late), norm]:
                node.inputs = [self._copied(value) for value in node.inputs]

    def _copied(self, value: Value) -> Value:
        made = value.node
        if made is None or made not in self._late or is_scalar(value):
            return value
        if made not in self._copies:
            inputs = [self._copied(operand) for operand in made.inputs]
            types = [output.type for output in made.outputs]
            copy = self._graph.make_node(made.op, inputs, dict(made.attrs), types, made.source)
            copy.layer, copy.direction = made.layer, made.direction
            self._copies[made] = copy
            self.before.setdefault(made, []).append(copy)
        return self._copies[made].outputs[value.index]


def _wide_ancestors(nodes: Iterable[Optional[Node]], own: set[Node]) -> set[Node]:
    found: set[Node] = set()
    stack = [node for node in nodes if node in own]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            makers = [value.node for value in node.inputs if not is_scalar(value)]
            stack.extend(maker for maker in makers if maker in own)
    return found


def _norms(graph: Graph, own: set[Node], late: set[Node], homes: dict[Node, Node]) -> list[Node]:
    """Nodes that reduce a variable's values to a scalar that another variable's update reads."""
    # For every node that reduces or combines scalars: the reductions before it.
    follows: dict[Node, frozenset[Node]] = {}
    found: dict[Node, None] = {}
    known: set[Node] = set()
    for node in graph.nodes:
        if node not in own:
            continue
        makers = [value.node for value in node.inputs if value.node in follows]
        before = frozenset().union(*(follows[maker] for maker in makers))
        if node in late and before - known:
            others = [m for m in before if homes[m] is not homes[node]]
            found.update(dict.fromkeys(others))
            known |= set(others)
        if node in late and not all(is_scalar(value) for value in node.outputs):
            continue
        wide = any(not is_scalar(v) and v.node in own for v in node.inputs)
        reduces = wide and all(is_scalar(value) for value in node.outputs)
        follows[node] = before | {node} if reduces else before
    return list(found)


def is_scalar(value: Value) -> bool:
    """Whether a value has one element."""
    return value.type.is_static and value.type.size == 1


def update_groups(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Groups nodes of updates by variable: for every node, the representative of its group.

    Nodes are in one group if a value of more than one element passes between them; scalars, such as
    a norm or a rate, do not join groups.
    """
    group: dict[Node, Node] = {node: node for node in nodes}

    def root(node: Node) -> Node:
        while group[node] is not node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for node in nodes:
        for value in node.inputs:
            if value.node in group and not is_scalar(value):
                group[root(value.node)] = root(node)
    return {node: root(node) for node in nodes}
