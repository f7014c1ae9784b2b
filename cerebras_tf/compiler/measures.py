"""Has what is measured of gradients, as for a global norm, come from their owners alone.

    before: all wafers:        g = mean_wait(...) for all;      s = sum_of_squares(g)
    after:  all wafers:        g = mean_wait(...) for wafer 1;  s = sum_of_squares(g)
            before s is used:  s', ... = wafer_pick(s, ...; roots=(1, ...))

The others measure what their memory holds instead of the mean, and drop it: numbers are told, not
gradients. Those that are used together are told together, once.

It comes behind `deal_out`, which says who updates what. It does not fire where anything but numbers
comes of a mean outside of one owner's update, or where another owner's update reads the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cerebras_tf.compiler.sharding import EVERYWHERE, UPDATE, Ownership
from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ops import lookup
from cerebras_tf.passes.average_gradients import START, WAIT
from cerebras_tf.passes.collectives import is_scalar

PICK = "wafer_pick"
_Readers = Mapping[Value, Sequence[Node]]


@dataclass
class _Measured:
    """What all wafers make of a mean.

    Attributes:
        root: the wafer whose update reads the mean.
        nodes: what they run.
        numbers: what comes of it.
    """

    root: int
    nodes: set[Node] = field(default_factory=set)
    numbers: list[Value] = field(default_factory=list)


def measure_on_owners(step: StepGraph, owned: Ownership) -> None:
    """Changes the step in place.

    Args:
        step: in the order of the schedule, roots of means set.
        owned: who updates what.
    """
    readers, wanted = step.graph.users(), set(step.graph.outputs)
    found = {}
    for node in step.graph.nodes:
        if node.op == START and node.attrs["root"] == EVERYWHERE:
            measured = _measured(node, readers, wanted, owned)
            if measured is not None:
                found[node] = measured
    makers: dict[Node, set[int]] = {}
    for measured in found.values():
        for inner in measured.nodes:
            makers.setdefault(inner, set()).add(measured.root)
    for start, measured in list(found.items()):  # what mixes means of several is true nowhere
        if any(len(makers[inner]) > 1 for inner in measured.nodes):
            del found[start]
    for start, measured in found.items():
        start.attrs["root"] = measured.root
    roots = {number: m.root for m in found.values() for number in m.numbers}
    if roots:
        _pick(step, roots, {node for m in found.values() for node in m.nodes}, owned)


def _measured(
    start: Node, readers: _Readers, wanted: set[Value], owned: Ownership
) -> _Measured | None:
    """What is measured of a mean; None where it must be everywhere."""
    nodes: set[Node] = set()
    numbers: list[Value] = []
    owners: set[int] = set()
    stack = [start.output]
    while stack:
        value = stack.pop()
        if value in wanted:
            return None
        for node in readers.get(value, ()):
            owner = owned.of(node)
            if owner != EVERYWHERE:
                owners.add(owner)
            elif node not in nodes:
                if node.op != WAIT and (lookup(node.op).collective or node.subgraphs):
                    return None
                nodes.add(node)
                numbers += [made for made in node.outputs if is_scalar(made)]
                stack += [made for made in node.outputs if not is_scalar(made)]
    if len(owners) != 1:
        return None
    (root,) = owners
    for number in numbers:
        late = [owned.of(node) for node in readers.get(number, ()) if node not in nodes]
        if not {EVERYWHERE, root}.issuperset(late):
            return None
    return _Measured(root, nodes, numbers)


def _pick(
    step: StepGraph, roots: Mapping[Value, int], measuring: set[Node], owned: Ownership
) -> None:
    """Tells numbers right before the first node that uses one of them on all wafers."""
    graph = step.graph
    told: dict[Value, Value] = {}
    waiting: dict[Value, None] = {}
    nodes: list[Node] = []

    def tell(layer: int, direction: str) -> None:
        picks = tuple(roots[number] for number in waiting)
        types = [number.type for number in waiting]
        pick = graph.make_node(PICK, list(waiting), {"roots": picks}, types)
        pick.layer, pick.direction = layer, direction
        told.update(zip(waiting, pick.outputs))
        waiting.clear()
        nodes.append(pick)

    for node in graph.nodes:
        if node not in measuring and owned.of(node) == EVERYWHERE:
            if any(value in waiting for value in node.inputs):
                tell(node.layer, node.direction)
            node.inputs = [told.get(value, value) for value in node.inputs]
        nodes.append(node)
        waiting.update(dict.fromkeys(value for value in node.outputs if value in roots))
    if not waiting.keys().isdisjoint(graph.outputs):
        tell(-1, UPDATE)
    graph.nodes = nodes
    graph.outputs = [told.get(value, value) for value in graph.outputs]
