"""Drops sums over wafers where there is one wafer.

Before: `%n = wafer_sum(%count)  %loss = div(%sum, %n)`; after: `%loss = div(%sum, %count)`. It
comes before every pass that looks for patterns, and must not fire where several wafers train.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import rewrite


def drop_wafer_sums(graph: Graph) -> None:
    """Drops in place."""

    def operand(b: Builder, node: Node) -> Optional[list[Value]]:
        return node.inputs if node.op == "wafer_sum" else None

    rewrite(graph, operand, fold=False)
