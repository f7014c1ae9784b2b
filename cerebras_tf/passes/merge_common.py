"""Computes equal expressions once.

Before: `%a = exp(%x)  %b = exp(%x)`; after: uses of %b are uses of %a. It must not merge nodes
that draw random numbers: each draws its own. Nor values that a `gradient`
node reads: two equal values are two places to differentiate by.
"""

from __future__ import annotations

from typing import Any

from cerebras_tf.ir import Graph, Value
from cerebras_tf.ir.text import print_attribute
from cerebras_tf.ops import draws


def merge_common(graph: Graph) -> None:
    """Merges in place; the earlier node stays."""
    apart = {value for node in graph.nodes if node.op == "gradient" for value in node.inputs}
    seen: dict[Any, list[Value]] = {}
    mapping: dict[Value, Value] = {}
    kept = []
    for node in graph.nodes:
        node.inputs = [mapping.get(value, value) for value in node.inputs]
        if draws(node) or any(value in apart for value in node.outputs):
            kept.append(node)
            continue
        attrs = tuple((key, print_attribute(value)) for key, value in sorted(node.attrs.items()))
        types = tuple(str(value.type) for value in node.outputs)
        key = (node.op, tuple(node.inputs), attrs, types)
        if key in seen:
            mapping.update(zip(node.outputs, seen[key]))
        else:
            seen[key] = node.outputs
            kept.append(node)
    graph.nodes = kept
    graph.replace(mapping)
