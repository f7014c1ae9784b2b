"""Cuts a step into layers, and orders its nodes: forward by layer, backward in reverse, updates.

A layer ends between the first uses of two weights, where the fewest bytes of activations are alive:
in residual networks, where only the residual stream is.

Every node gets a group key; keys are raised until no node precedes its operands. An update runs
right after the gradient that it needs, unless it needs a value of all gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.passes.average_gradients import START, WAIT
from cerebras_tf.passes.split_norms import update_groups

# Ops that do not belong to an update.
_BOUNDARY = ("constant", GRADIENT, START, WAIT)
# Layers of the backward pass that run during the mean of a gradient over wafers.
_LAYERS_AHEAD = 2

# (stage, layer of an update or -1): stages 0..L-1 forward, L..2L-1 backward, 2L others.
GroupKey = tuple[int, int]


def order_nodes(step: StepGraph, layers: int) -> dict[Node, GroupKey]:
    """Orders a differentiated step's nodes by group and sets their `layer` and `direction`.

    Returns:
        Group of every node; nodes of equal keys run together.
    """
    updates = _updates_of_nodes(step)
    first = {node: _forward_key(node, layers) for node in step.graph.nodes}
    earliest = _raised(step, first, layers)
    stage_of: dict[int, int] = {}
    for node, update in updates.items():
        stage_of[update.number] = max(stage_of.get(update.number, 0), earliest[node][0])
    own = dict(earliest)
    for node, update in updates.items():
        stage = stage_of[update.number]
        if stage >= layers:  # nodes without a gradient, such as weight decay, wait too
            own[node] = (min(stage, 2 * layers), update.layer)
    keys = _raised(step, own, layers)
    for node, (stage, update_layer) in keys.items():
        if stage < layers:
            node.direction, node.layer = "forward", stage
        elif stage < 2 * layers and update_layer < 0:
            node.direction, node.layer = "backward", 2 * layers - 1 - stage
        else:
            node.direction, node.layer = "update", update_layer
    step.graph.nodes.sort(key=lambda node: keys[node])  # stable
    return keys


@dataclass(frozen=True)
class _Update:
    """The update that a node belongs to: its number, and the layer of its variable."""

    number: int
    layer: int


def _forward_key(node: Node, layers: int) -> GroupKey:
    if node.op == "constant" or node.layer < 0:
        return (0, -1)
    if node.direction == "forward":
        return (node.layer, -1)
    return (2 * layers - 1 - node.layer, -1)


def _raised(step: StepGraph, own: dict[Node, GroupKey], layers: int) -> dict[Node, GroupKey]:
    """Raises keys so that no node precedes its operands, and means are awaited layers later."""
    keys: dict[Node, GroupKey] = {}
    for node in step.graph.nodes:
        before = [keys[value.node] for value in node.inputs if value.node is not None]
        keys[node] = max([own[node], *before])
        if node.op == WAIT:
            stage = max(before)[0] + _LAYERS_AHEAD
            keys[node] = max(keys[node], (min(stage, 2 * layers), -1))
    return keys


def _updates_of_nodes(step: StepGraph) -> dict[Node, _Update]:
    """For nodes of updates, the update that they belong to; see update_groups."""
    nodes = [n for n in step.graph.nodes if n.layer < 0 and n.op not in _BOUNDARY]
    group = update_groups(nodes)
    layer_of = _layers_of_variables(step)
    found: dict[Node, int] = {}
    for name, value in step.updates.items():
        if value.node in group:
            top = group[value.node]
            layer = layer_of.get(name, layer_of.get(_owner(name, layer_of), 0))
            found[top] = max(found.get(top, 0), layer)
    number = {top: i for i, top in enumerate(found)}
    return {node: _Update(number[top], found[top]) for node, top in group.items() if top in found}


def _layers_of_variables(step: StepGraph) -> dict[str, int]:
    names = {value: name for name, value in step.variables.items()}
    found: dict[str, int] = {}
    for node in step.graph.nodes:
        if node.layer >= 0 and node.direction == "forward":
            for value in node.inputs:
                if value in names:
                    found.setdefault(names[value], node.layer)
    return found


def _owner(slot: str, names: dict[str, int]) -> str:
    """The variable of an optimizer slot, by its name: `kernel/Adam` -> `kernel`."""
    while "/" in slot and slot not in names:
        slot = slot.rpartition("/")[0]
    return slot


# A cut is made where the live bytes are within this factor of the least among its neighbors.
_SLACK = 1.2
# Neighboring candidates on each side.
_WINDOW = 3


def assign_layers(step: StepGraph) -> int:
    """Sets `layer` of every forward node before differentiation; returns the number of layers."""
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
    """Nodes that the loss depends on, in order, without those that depend on gradients."""
    after: set[Value] = set()
    for node in step.graph.nodes:
        if node.op == "gradient" or any(value in after for value in node.inputs):
            after.update(node.outputs)
    wanted: set[Value] = set()
    for node in step.graph.nodes:
        if node.op == "gradient":
            wanted.update(node.inputs)
    if not wanted:
        wanted.update(step.graph.outputs)
    kept = []
    for node in reversed(step.graph.nodes):
        if any(value in wanted and value not in after for value in node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _weights(step: StepGraph, nodes: list[Node]) -> set[Value]:
    """Variables, and their copies and casts."""
    found = set(step.variables.values())
    for node in nodes:
        if node.op in ("identity", "cast") and node.inputs[0] in found:
            found.add(node.output)
    return found


def _first_use(node: Node, weights: set[Value], unused: set[Value]) -> bool:
    """Whether the node is the first to use some weight, which is removed from `unused`.

    Scalars do not count: a loss scale is used with the loss, where hardly anything is alive, and
    the layers before it would not be cut.
    """
    if node.outputs[0] in weights:
        return False
    found = [value for value in node.inputs if value in unused]
    unused.difference_update(found)
    return any(value.shape != () for value in found)


def _live_bytes(nodes: list[Node], weights: set[Value]) -> list[int]:
    """Bytes of activations alive before each node, of those that depend on weights."""
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
        size = value.type.max_bytes if value.type.is_bounded else 0
        change[start + 1] += size
        change[end + 1] -= size
    live, total = [], 0
    for delta in change:
        total += delta
        live.append(total)
    return live
