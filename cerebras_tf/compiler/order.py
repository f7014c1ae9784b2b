"""Puts nodes in the order of the schedule: forward by layer, backward in reverse, then updates.

Every node gets a group key; keys are raised until no node comes before what it needs, so any graph
has a valid order. An update goes right behind the gradient it needs where nothing global stands in
the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.passes.average_gradients import START, WAIT
from cerebras_tf.passes.split_norms import update_groups

# Ops that join no update: it begins behind them.
_BOUNDARY = ("constant", GRADIENT, START, WAIT)
# Layers of the backward pass that run while the mean of a gradient over wafers is on its way.
_LAYERS_AHEAD = 2

# (stage, layer of an update or -1): stages 0..L-1 forward, L..2L-1 backward, 2L the rest.
GroupKey = tuple[int, int]


def order_nodes(step: StepGraph, layers: int) -> dict[Node, GroupKey]:
    """Reorders a step's nodes by group and sets their `layer` and `direction`.

    Args:
        step: differentiated step; forward nodes and the nodes of their gradients have layers.
        layers: number of layers.

    Returns:
        Group of every node; equal keys run together.
    """
    homes = _homes(step)
    first = {node: _forward_key(node, layers) for node in step.graph.nodes}
    earliest = _raised(step, first, layers)
    stage_of: dict[int, int] = {}
    for node, home in homes.items():
        stage_of[home.number] = max(stage_of.get(home.number, 0), earliest[node][0])
    own = dict(earliest)
    for node, home in homes.items():
        stage = stage_of[home.number]
        if stage >= layers:  # what needs no gradient (weight decay) still waits for the others
            own[node] = (min(stage, 2 * layers), home.layer)
    keys = _raised(step, own, layers)
    for node, (stage, home_layer) in keys.items():
        if stage < layers:
            node.direction, node.layer = "forward", stage
        elif stage < 2 * layers and home_layer < 0:
            node.direction, node.layer = "backward", 2 * layers - 1 - stage
        else:
            node.direction, node.layer = "update", home_layer
    step.graph.nodes.sort(key=lambda node: keys[node])  # stable: order within a group is kept
    return keys


@dataclass(frozen=True)
class _Home:
    """Update nodes that belong together: their number, and the layer of their variables."""

    number: int
    layer: int


def _forward_key(node: Node, layers: int) -> GroupKey:
    if node.op == "constant" or node.layer < 0:
        return (0, -1)
    if node.direction == "forward":
        return (node.layer, -1)
    return (2 * layers - 1 - node.layer, -1)


def _raised(step: StepGraph, own: dict[Node, GroupKey], layers: int) -> dict[Node, GroupKey]:
    """Keys raised so that no node comes before what it needs; gradients end the backward pass.

    What waits for the mean of a gradient does so some layers later.
    """
    keys: dict[Node, GroupKey] = {}
    for node in step.graph.nodes:
        before = [keys[value.node] for value in node.inputs if value.node is not None]
        keys[node] = max([own[node], *before])
        if node.op == WAIT:
            stage = max(before)[0] + _LAYERS_AHEAD  # its own key may be raised already
            keys[node] = max(keys[node], (min(stage, 2 * layers), -1))
    return keys


def _homes(step: StepGraph) -> dict[Node, _Home]:
    """Update nodes that belong to one variable and its optimizer state.

    Nodes belong together where a value of more than one element passes between them; what passes
    only scalars (a norm, a rate) joins nothing.
    """
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
    return {node: _Home(number[top], found[top]) for node, top in group.items() if top in found}


def _layers_of_variables(step: StepGraph) -> dict[str, int]:
    """First layer in which each variable is used."""
    names = {value: name for name, value in step.variables.items()}
    found: dict[str, int] = {}
    for node in step.graph.nodes:
        if node.layer >= 0 and node.direction == "forward":
            for value in node.inputs:
                if value in names:
                    found.setdefault(names[value], node.layer)
    return found


def _owner(slot: str, names: dict[str, int]) -> str:
    """The variable an optimizer slot belongs to, going by its name: `kernel/Adam` -> `kernel`."""
    while "/" in slot and slot not in names:
        slot = slot.rpartition("/")[0]
    return slot


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
