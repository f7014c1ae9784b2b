"""Sums squares without writing them: what norms of gradients and of weights are made of.

Before: `%s = square(%x)  %n = sum(%s)` over all axes; after: `%n = sum_of_squares(%x)`. It must not
fire where the squares are read otherwise, nor where a part of the axes is summed.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import rewrite


def fuse_sum_of_squares(graph: Graph) -> None:
    """Replaces in place, behind differentiation."""
    users = graph.users()
    wanted = set(graph.outputs)

    def joined(b: Builder, node: Node) -> Optional[list[Value]]:
        x = _squared(node, users, wanted)
        if x is None:
            return None
        total = b.op("sum_of_squares", x)
        if node.output.shape != ():
            total = b.op("reshape", total, shape=node.output.shape)
        return [total]

    rewrite(graph, joined, fold=False)


def _squared(node: Node, users: dict[Value, list[Node]], wanted: set[Value]) -> Optional[Value]:
    """x, where the node sums x^2 over all axes."""
    if node.op != "sum" or len(node.attrs["axes"]) != node.inputs[0].type.rank:
        return None
    squares = node.inputs[0]
    made = squares.node
    if made is None or squares in wanted or len(users.get(squares, ())) != 1:
        return None
    x = made.inputs[0] if made.inputs else None
    product = made.op == "mul" and made.inputs[0] is made.inputs[-1]
    if x is None or not (made.op == "square" or product) or x.type != squares.type:
        return None
    return x if x.type.is_bounded and x.type.is_floating and x.type.rank else None
