"""Cuts a forward graph into layers, each with the weights it streams.

A cut lies between the first uses of two weights, where the fewest bytes of activations are alive,
so layers of residual networks end where only the residual stream goes on. It knows no model: only
weights, values and their sizes.
"""

from __future__ import annotations

from cerebras_tf.ir import Node, StepGraph, Value

# A cut is made where the live bytes are within this factor of the least among its neighbours.
_SLACK = 1.2
# Neighbouring candidates looked at on each side.
_WINDOW = 3


def assign_layers(step: StepGraph) -> int:
    """Sets `layer` of every forward node; other nodes keep -1.

    Args:
        step: a step whose `gradient` nodes are not expanded yet.

    Returns:
        Number of layers.
    """
    nodes = forward_nodes(step)
    weights = _weights(step, nodes)
    unused = set(weights)
    uses = [i for i, node in enumerate(nodes) if _first_use(node, weights, unused)]
    if not uses:
        for node in nodes:
            node.layer = 0
        return 1
    live = _live_bytes(nodes, weights)
    candidates = []
    for start, end in zip(uses, uses[1:]):
        position = min(range(start + 1, end + 1), key=lambda p: (live[p], -p))
        candidates.append((live[position], position))
    cuts = []
    for i, (size, position) in enumerate(candidates):
        near = candidates[max(0, i - _WINDOW) : i + _WINDOW + 1]
        if size <= _SLACK * min(other for other, _ in near):
            cuts.append(position)
    layer = 0
    bounds = set(cuts)
    for i, node in enumerate(nodes):
        layer += i in bounds
        node.layer = layer
    return layer + 1


def forward_nodes(step: StepGraph) -> list[Node]:
    """Nodes that no gradient flows into: those before the loss, in order."""
    behind: set[Value] = set()
    for node in step.graph.nodes:
        if node.op == "gradient" or any(value in behind for value in node.inputs):
            behind.update(node.outputs)
    wanted: set[Value] = set()
    for node in step.graph.nodes:
        if node.op == "gradient":
            wanted.update(node.inputs)
    if not wanted:
        wanted.update(step.graph.outputs)
    kept = []
    for node in reversed(step.graph.nodes):
        if any(value in wanted and value not in behind for value in node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _weights(step: StepGraph, nodes: list[Node]) -> set[Value]:
    """Variables, and what merely repeats or casts them."""
    found = set(step.variables.values())
    for node in nodes:
        if node.op in ("identity", "cast") and node.inputs[0] in found:
            found.add(node.output)
    return found


def _first_use(node: Node, weights: set[Value], unused: set[Value]) -> bool:
    """Whether the node is the first to compute with some weight; it leaves `unused`.

    A single number is no weight to end a layer for: that of a loss scale meets the loss, where
    hardly anything is alive, and the last layers would look too large to end beside it.
    """
    if node.outputs[0] in weights:
        return False
    found = [value for value in node.inputs if value in unused]
    unused.difference_update(found)
    return any(value.shape != () for value in found)


def _live_bytes(nodes: list[Node], weights: set[Value]) -> list[int]:
    """Bytes of activations alive before each node: made earlier from weights, used later."""
    active = set(weights)
    made: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        if any(value in active for value in node.inputs) and node.outputs[0] not in weights:
            for value in node.outputs:
                active.add(value)
                made[value] = i
        for value in node.inputs:
            last[value] = i
    change = [0] * (len(nodes) + 2)
    for value, start in made.items():
        end = last.get(value, start)
        size = value.type.most_bytes if value.type.is_bounded else 0
        change[start + 1] += size
        change[end + 1] -= size
    live, total = [], 0
    for delta in change:
        total += delta
        live.append(total)
    return live
