"""Repeats views of variables in every part of the step that reads them.

Before: in the forward pass of a layer, `%v = reshape(%w)`, which the backward pass reads, too.
After: the backward pass has its own `reshape(%w)`. A part thus reads all its variables itself, so
that they are streamed in for it; the memory that a view of another part shows may be reused.

The pass runs when nodes have layers and directions. Views take no time and no memory.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ops import Builder, is_view, viewed


def localize_views(step: StepGraph) -> None:
    """Repeats in place, and removes views that nothing reads any more."""
    graph = step.graph
    variables = set(step.variables.values())
    nodes, graph.nodes = graph.nodes, []
    b = Builder(graph)
    copies: dict[tuple[Value, str, int], Value] = {}

    def local(value: Value, reader: Node) -> Value:
        node = value.node
        if node is None or not is_view(node) or viewed(value) not in variables:
            return value
        if (node.direction, node.layer) == (reader.direction, reader.layer):
            return value
        key = value, reader.direction, reader.layer
        if key not in copies:
            operands = [local(operand, reader) for operand in node.inputs]
            b.source, b.direction, b.layer = node.source, reader.direction, reader.layer
            made = b.emit(node.op, operands, node.attrs, [v.type for v in node.outputs])
            copies[key] = made.outputs[value.index]
        return copies[key]

    for node in nodes:
        node.inputs = [local(value, node) for value in node.inputs]
        graph.nodes.append(node)
    _remove_unread(step, {value.node for value, _, _ in copies})


def _remove_unread(step: StepGraph, copied: set[Optional[Node]]) -> None:
    """Removes views that were copied, and views that they show, if nothing reads them any more."""
    graph = step.graph
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if node in copied and needed.isdisjoint(node.outputs):
            copied.update(v.node for v in node.inputs if v.node is not None and is_view(v.node))
            continue
        needed.update(node.inputs)
        kept.append(node)
    graph.nodes = kept[::-1]
