"""Moves views of an update to the update that reads them, so that their operand can be broadcast.

Before: in the update of layer 7, `%s = sum(%squares)  %r = reshape(%s)`, and in that of layer 1
`%n = concat(%r, ...)`; after: `%r = reshape(%s)` precedes the concat, in layer 1's update. A value
with its own memory can be sent to other wafers, a view cannot.

The pass runs after fusion and before layers are sharded. It does not fire where a view is a result
of the step, or is read by several layers; nor on `parameter_gradient` and means.
"""

from __future__ import annotations

from collections import defaultdict

from cerebras_tf.ir import Node, StepGraph
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import is_view, lookup

_UPDATE = "update"


def sink_views(step: StepGraph) -> None:
    """Moves in place; nodes are ordered, with layers and directions."""
    users = step.graph.users()
    wanted = set(step.graph.outputs)
    place = {node: index for index, node in enumerate(step.graph.nodes)}
    before: dict[Node, list[Node]] = defaultdict(list)
    for node in reversed(list(step.graph.nodes)):
        if not _may_move(node) or not wanted.isdisjoint(node.outputs):
            continue
        readers = [reader for value in node.outputs for reader in users.get(value, ())]
        homes = {(reader.layer, reader.direction) for reader in readers}
        if len(homes) == 1 and homes != {(node.layer, node.direction)}:
            first = min(readers, key=lambda reader: place[reader])
            ((node.layer, node.direction),) = homes
            before[first].insert(0, node)
    moved = {node for nodes in before.values() for node in nodes}
    ordered: list[Node] = []

    def put(node: Node) -> None:
        for view in before.get(node, ()):
            put(view)
        ordered.append(node)

    for node in step.graph.nodes:
        if node not in moved:
            put(node)
    step.graph.nodes = ordered


def _may_move(node: Node) -> bool:
    is_free = node.op != GRADIENT and not lookup(node.op).collective
    return node.direction == _UPDATE and is_free and is_view(node)
