"""Values that gradients are taken by: patterns must not bypass them before differentiation.

A value inside a fused op no longer exists, and a gradient by it would silently be zero.
"""

from __future__ import annotations

from cerebras_tf.ir import Graph, Value


def watched_values(graph: Graph) -> set[Value]:
    """What `gradient` nodes read, graph inputs left out."""
    return {
        value
        for node in graph.nodes
        if node.op == "gradient"
        for value in node.inputs
        if value.node is not None
    }
