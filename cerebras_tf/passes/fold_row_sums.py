"""Adds rows to a table that is there instead of adding two tables, one of them nearly all zeros.

Before: `%s = scatter_add_rows(%ids, %rows)  %g = add(%t, %s)`; after:
`%g = rows_add(%t, %ids, %rows)`. That is the gradient of an embedding whose weights are the output
projection's, too. It must not fire where the sums are read otherwise, nor where the table is one
row that is repeated.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import rewrite


def fold_row_sums(graph: Graph) -> None:
    """Replaces in place, behind differentiation."""
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
