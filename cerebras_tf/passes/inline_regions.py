"""Inlines structural ops whose regions hold only cheap ops.

Before: `%y = cond(%p, %x) {then; orelse}`; after: both bodies in place and `%y = select(%p, ...)`.
An optimizer step guarded by a loss-scale test then fuses with its update. Regions that hold costly
ops or draw random numbers are not inlined.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder, lookup, regions
from cerebras_tf.passes.rewrite import rewrite


def inline_regions(graph: Graph) -> None:
    """Inlines in place, inner regions first."""
    rewrite(graph, _inlined)


def _inlined(b: Builder, node: Node) -> Optional[list[Value]]:
    for inner in node.subgraphs.values():
        inline_regions(inner)
    structure = lookup(node.op).structure
    if structure is None or structure.inline is None:
        return None
    inside = (item for region in regions(node) for item in region.graph.nodes)
    return structure.inline(b, node) if all(lookup(item.op).cheap for item in inside) else None
