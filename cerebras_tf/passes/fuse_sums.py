"""Fuses sums with what they add: squares, and rows of tables."""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import rewrite


def fuse_sum_of_squares(graph: Graph, shared: bool = False) -> None:
    """Sums squares without storing them, as norms of gradients and weights need.

    Before: `%s = square(%x)  %n = sum(%s)` over all axes; after: `%n = sum_of_squares(%x)`.

    Args:
        graph: changed in place.
        shared: also where the squares have other readers, such as Adam's moments, which recompute
            them. Not before nodes are ordered: a norm belongs to the update that reads its squares.
    """
    users = graph.users()
    wanted = set(graph.outputs)

    def joined(b: Builder, node: Node) -> Optional[list[Value]]:
        x = _squared(node)
        if x is None:
            return None
        squares = node.inputs[0]
        if not shared and (squares in wanted or len(users.get(squares, ())) != 1):
            return None
        total = b.op("sum_of_squares", x)
        if node.output.shape != ():
            total = b.op("reshape", total, shape=node.output.shape)
        return [total]

    rewrite(graph, joined, fold=False)


def _squared(node: Node) -> Optional[Value]:
    """x, if the node sums x^2 over all axes."""
    if node.op != "sum" or len(node.attrs["axes"]) != node.inputs[0].type.rank:
        return None
    squares = node.inputs[0]
    made = squares.node
    if made is None or made.op not in ("square", "mul") or made.inputs[0] is not made.inputs[-1]:
        return None
    x = made.inputs[0]
    if x.type != squares.type:
        return None
    return x if x.type.is_bounded and x.type.is_floating and x.type.rank else None


def fold_row_sums(graph: Graph) -> None:
    """Adds rows to a table in place instead of adding a table that is nearly all zeros.

    Before: `%s = scatter_add_rows(%ids, %rows)  %g = add(%t, %s)`; after:
    `%g = rows_add(%t, %ids, %rows)`: the gradient of an embedding that is also the output
    projection. The pass does not fire where the sums have other readers, or where the table is one
    row that is broadcast.
    """
    users = graph.users()
    wanted = set(graph.outputs)

    def folded(b: Builder, node: Node) -> Optional[list[Value]]:
        if node.op != "add" or any(value.type != node.output.type for value in node.inputs):
            return None
        for sums, table in (node.inputs, node.inputs[::-1]):
            made = sums.node
            if made is None or made.op != "scatter_add_rows" or sums is table:
                continue
            if sums not in wanted and len(users.get(sums, ())) == 1:
                return [b.op("rows_add", table, *made.inputs)]
        return None

    rewrite(graph, folded, fold=False)
