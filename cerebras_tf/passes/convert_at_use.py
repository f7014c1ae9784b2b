"""Converts weights that are stored in 16 bits where they are used, or not at all.

Before: `%w: float32 = cast(%stored)` is read by products, by a gather and by a norm, in forward and
backward pass; after: bfloat16 products read `%stored`, which they would round to anyway; the gather
reads `%stored`, and its rows are converted; other nodes of each layer and direction read a cast of
their own. So no float32 copy of a weight outlives a layer. The pass does not fire for values that
are computed.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ir.types import HALF_TYPES
from cerebras_tf.ops import Builder, lookup
from cerebras_tf.passes.lower_products import ROUNDED
from cerebras_tf.passes.rewrite import rewrite


def convert_at_use(graph: Graph) -> None:
    """Replaces in place, after lower_products."""
    stored = {
        node.output: node.inputs[0]
        for node in graph.nodes
        if node.op == "cast" and node.output.dtype == "float32" and _is_stored(node.inputs[0])
    }
    if not stored:
        return
    casts: dict[tuple[Value, str, int], Value] = {}

    def converted(b: Builder, node: Node) -> Optional[list[Value]]:
        if node.op == "gather" and node.inputs[0] in stored:
            source, attrs = stored[node.inputs[0]], node.attrs
            return [b.op("cast", b.op("gather", source, node.inputs[1], **attrs), dtype="float32")]
        rounds = node.attrs.get("compute") == ROUNDED
        direct = lookup(node.op).rounded if rounds else ()
        for at, value in enumerate(node.inputs):
            if value not in stored:
                continue
            if at in direct and stored[value].dtype == ROUNDED:
                node.inputs[at] = stored[value]
                continue
            key = value, node.direction, node.layer
            if key not in casts:
                casts[key] = b.op("cast", stored[value], dtype="float32")
            node.inputs[at] = casts[key]
        return None

    rewrite(graph, converted, fold=False)


def _is_stored(value: Value) -> bool:
    return value.node is None and value.dtype in HALF_TYPES and value.type.rank > 0
