"""Puts nodes in the order of the schedule: forward by layer, backward in reverse, then updates.

Every node gets a group key; keys are raised until no node comes before what it needs, so any graph
has a valid order. An update goes right behind the gradient it needs where nothing global stands in
the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tf.ir import Node, StepGraph
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.passes.average_gradients import START, WAIT
from cerebras_tf.passes.collectives import exchange_groups

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
    group = exchange_groups(nodes)
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
