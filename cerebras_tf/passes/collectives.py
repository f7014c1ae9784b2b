"""Which nodes of updates exchange whole values, and which only numbers such as a norm or a rate."""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.ir import Node, Value


def is_scalar(value: Value) -> bool:
    """Whether a value is known to have one element."""
    return value.type.is_static and value.type.size == 1


def exchange_groups(nodes: Sequence[Node]) -> dict[Node, Node]:
    """For every node, in order, one that stands for all those it belongs together with.

    Nodes belong together where a value of more than one element passes between them; what passes
    only scalars joins nothing.
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
