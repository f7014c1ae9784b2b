"""Which wafer of a job owns what: state and updates are dealt out by layer.

The update of a layer runs on one wafer, its owner, which alone keeps what that update reads and
writes. Weights go from there to all others when a layer needs them; the mean of a gradient ends
there where nobody else reads it. Every other node runs on all wafers, with equal results:

    owner of layer 7:   w' = w - rate * factor * g        (w, its moments, g: there alone)
    all wafers:         factor = 1 / max(norm, 1)         (see measures.py)

A layer has no owner where others need results of its update that cannot be sent: those with no
memory of their own, or of unknown size. Its update runs everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.step import RESULT
from cerebras_tf.ops import is_view, lookup
from cerebras_tf.passes.average_gradients import START, WAIT
from cerebras_tf.passes.split_norms import is_scalar

EVERYWHERE = -1
UPDATE = "update"


@dataclass
class Ownership:
    """Who owns what, wafers counted from 0.

    Attributes:
        wafers: how many there are.
        layers: wafer that runs the update, by layer; EVERYWHERE is not listed.
        homes: wafer that keeps a variable, by name; those that all keep are not listed.
        leaving: values of a layer's update that others read, by layer.
    """

    wafers: int = 1
    layers: dict[int, int] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)
    leaving: dict[int, list[Value]] = field(default_factory=dict)

    def of(self, node: Node) -> int:
        """The wafer on which a node runs, or EVERYWHERE."""
        if node.direction != UPDATE:
            return EVERYWHERE
        return self.layers.get(node.layer, EVERYWHERE)


# The ownership of one wafer: it runs and keeps everything.
ALONE = Ownership()


def deal_out(step: StepGraph, wafers: int) -> Ownership:
    """Gives layers to wafers so that each keeps about as many bytes, and means their owners.

    Args:
        step: in the order of the schedule, layers and directions set; roots of means are set.
        wafers: how many there are.
    """
    updates: dict[int, list[Node]] = defaultdict(list)
    for node in step.graph.nodes:
        if node.direction == UPDATE and node.layer >= 0:
            updates[node.layer].append(node)
    readers = step.graph.users()
    owned = Ownership(wafers)
    touched: dict[int, set[str]] = {}
    for layer, nodes in updates.items():
        leaving = list(_leaving(step, nodes, readers))
        if all(map(_can_leave, leaving)) and not _must_run_together(step, nodes, leaving):
            owned.leaving[layer] = leaving
            touched[layer] = set(_variables(step, nodes))
    load = [0] * wafers
    sizes = {layer: _bytes(step, names) for layer, names in touched.items()}
    for layer in sorted(sizes, key=lambda layer: (-sizes[layer], layer)):
        owner = load.index(min(load))
        owned.layers[layer] = owner
        load[owner] += sizes[layer]
    _find_homes(step, owned, touched, load)
    _mean_owners(step, owned, readers)
    return owned


def _leaving(
    step: StepGraph, nodes: Sequence[Node], readers: Mapping[Value, Sequence[Node]]
) -> Iterator[Value]:
    """Values of an update that nodes elsewhere read, or that are wanted."""
    inside = set(nodes)
    wanted = set(step.results.values())
    for node in nodes:
        for value in node.outputs:
            if value in wanted or any(reader not in inside for reader in readers.get(value, ())):
                yield value


def _can_leave(value: Value) -> bool:
    """Whether a value can be sent: it has memory of its own on every wafer."""
    assert value.node is not None
    return value.type.is_bounded and not is_view(value.node)


def _must_run_together(step: StepGraph, nodes: Sequence[Node], leaving: Iterable[Value]) -> bool:
    """Whether an update exchanges by itself, or new values of variables are read elsewhere."""
    new = {value for value in step.updates.values() if value.node in set(nodes)}
    stored_elsewhere = any(not _can_leave(value) for value in new)
    return (
        stored_elsewhere
        or not new.isdisjoint(leaving)
        or any(lookup(node.op).collective for node in nodes)
    )


def _variables(step: StepGraph, nodes: Iterable[Node]) -> Iterator[str]:
    """Variables that nodes read or make new values of."""
    names = {value: name for name, value in step.variables.items()}
    inside = set(nodes)
    for node in inside:
        yield from (names[value] for value in node.inputs if value in names)
    yield from (name for name, value in step.updates.items() if value.node in inside)


def _bytes(step: StepGraph, names: Iterable[str]) -> int:
    return sum(step.variables[name].type.most_bytes for name in names if name in step.variables)


def _find_homes(
    step: StepGraph, owned: Ownership, touched: Mapping[int, set[str]], load: list[int]
) -> None:
    """Variables of one owner's updates live there, those of none where there is most room."""
    owners: dict[str, set[int]] = defaultdict(set)
    for layer, names in touched.items():
        for name in names:
            owners[name].add(owned.layers[layer])
    for name in sorted(step.variables):
        found = owners[name]
        if len(found) == 1:
            (owned.homes[name],) = found
        elif not found:
            owned.homes[name] = home = load.index(min(load))
            load[home] += _bytes(step, [name])


def _mean_owners(
    step: StepGraph, owned: Ownership, readers: Mapping[Value, Sequence[Node]]
) -> None:
    """Sends means to the owner alone where nobody else reads them."""
    wanted = {step.graph.outputs[at] for (kind, _), at in step.labels.items() if kind == RESULT}
    for node in step.graph.nodes:
        if node.op == START:
            found = set(_reading_wafers(node.output, readers, owned, wanted))
            node.attrs["root"] = found.pop() if len(found) == 1 else EVERYWHERE


def _reading_wafers(
    value: Value, readers: Mapping[Value, Sequence[Node]], owned: Ownership, wanted: set[Value]
) -> Iterator[int]:
    """Wafers on which the bytes of a value are read."""
    if value in wanted:
        yield EVERYWHERE
    for node in readers.get(value, ()):
        if is_view(node):
            for output in node.outputs:
                yield from _reading_wafers(output, readers, owned, wanted)
        else:
            yield owned.of(node)


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


def compute_norms_on_owners(step: StepGraph, owned: Ownership) -> None:
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
