"""Shards variables, optimizer state and updates over wafers by layer.

The update of a layer runs on one wafer, its owner, which alone stores what that update reads and
writes. Weights are broadcast from there when a layer needs them; the mean of a gradient is reduced
to the owner if nothing else reads it. Every other node runs on all wafers, with equal results:

    owner of layer 7:   w' = w - rate * factor * g        (w, its moments, g: there only)
    all wafers:         factor = 1 / max(norm, 1)         (see compute_norms_on_owners)

A layer has no owner if other nodes read results of its update that cannot be sent: views, or values
of unknown size. Its update then runs on all wafers.
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
    """Owners, by rank.

    Attributes:
        layers: owner of each layer; layers without an owner are not listed.
        owners: rank that stores a variable, by name; variables that all keep are not listed.
        shared: values of a layer's update that other nodes read, by layer.
    """

    wafers: int = 1
    layers: dict[int, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    shared: dict[int, list[Value]] = field(default_factory=dict)

    def of(self, node: Node) -> int:
        """The wafer on which a node runs, or EVERYWHERE."""
        if node.direction != UPDATE:
            return EVERYWHERE
        return self.layers.get(node.layer, EVERYWHERE)


# The ownership of a single wafer.
ALONE = Ownership()


def shard_updates(step: StepGraph, wafers: int) -> Ownership:
    """Assigns owners so that wafers keep about equally many bytes, and sets the roots of means.

    Args:
        step: in schedule order, with layers and directions; changed in place.
    """
    updates: dict[int, list[Node]] = defaultdict(list)
    for node in step.graph.nodes:
        if node.direction == UPDATE and node.layer >= 0:
            updates[node.layer].append(node)
    readers = step.graph.users()
    owned = Ownership(wafers)
    touched: dict[int, set[str]] = {}
    for layer, nodes in updates.items():
        shared = list(_shared(step, nodes, readers))
        if all(map(_can_send, shared)) and not _needs_all_wafers(step, nodes, shared):
            owned.shared[layer] = shared
            touched[layer] = set(_variables(step, nodes))
    load = [0] * wafers
    sizes = {layer: _bytes(step, names) for layer, names in touched.items()}
    for layer in sorted(sizes, key=lambda layer: (-sizes[layer], layer)):
        owner = load.index(min(load))
        owned.layers[layer] = owner
        load[owner] += sizes[layer]
    _assign_owners(step, owned, touched, load)
    _mean_owners(step, owned, readers)
    return owned


def _shared(
    step: StepGraph, nodes: Sequence[Node], readers: Mapping[Value, Sequence[Node]]
) -> Iterator[Value]:
    """Values of an update that are results, or that other nodes read."""
    inside = set(nodes)
    wanted = set(step.results.values())
    for node in nodes:
        for value in node.outputs:
            if value in wanted or any(reader not in inside for reader in readers.get(value, ())):
                yield value


def _can_send(value: Value) -> bool:
    """Whether a value has its own memory on every wafer."""
    assert value.node is not None
    return value.type.is_bounded and not is_view(value.node)


def _needs_all_wafers(step: StepGraph, nodes: Sequence[Node], shared: Iterable[Value]) -> bool:
    """Whether an update has collectives, or other nodes read its new values of variables."""
    new = {value for value in step.updates.values() if value.node in set(nodes)}
    stored_elsewhere = any(not _can_send(value) for value in new)
    return (
        stored_elsewhere
        or not new.isdisjoint(shared)
        or any(lookup(node.op).collective for node in nodes)
    )


def _variables(step: StepGraph, nodes: Iterable[Node]) -> Iterator[str]:
    names = {value: name for name, value in step.variables.items()}
    inside = set(nodes)
    for node in inside:
        yield from (names[value] for value in node.inputs if value in names)
    yield from (name for name, value in step.updates.items() if value.node in inside)


def _bytes(step: StepGraph, names: Iterable[str]) -> int:
    return sum(step.variables[name].type.max_bytes for name in names if name in step.variables)


def _assign_owners(
    step: StepGraph, owned: Ownership, touched: Mapping[int, set[str]], load: list[int]
) -> None:
    """Assigns variables to the owner of their update, others to the wafer with the fewest bytes."""
    owners: dict[str, set[int]] = defaultdict(set)
    for layer, names in touched.items():
        for name in names:
            owners[name].add(owned.layers[layer])
    for name in sorted(step.variables):
        found = owners[name]
        if len(found) == 1:
            (owned.owners[name],) = found
        elif not found:
            owned.owners[name] = owner = load.index(min(load))
            load[owner] += _bytes(step, [name])


def _mean_owners(
    step: StepGraph, owned: Ownership, readers: Mapping[Value, Sequence[Node]]
) -> None:
    """Reduces means to the owner if nothing else reads them."""
    wanted = {step.graph.outputs[at] for (kind, _), at in step.labels.items() if kind == RESULT}
    for node in step.graph.nodes:
        if node.op == START:
            found = set(_reading_wafers(node.output, readers, owned, wanted))
            node.attrs["root"] = found.pop() if len(found) == 1 else EVERYWHERE


def _reading_wafers(
    value: Value, readers: Mapping[Value, Sequence[Node]], owned: Ownership, wanted: set[Value]
) -> Iterator[int]:
    """Wafers on which a value is read, also through views."""
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
    """The nodes that compute scalars from a mean.

    Attributes:
        root: the wafer whose update reads the mean.
        numbers: the scalars.
    """

    root: int
    nodes: set[Node] = field(default_factory=set)
    numbers: list[Value] = field(default_factory=list)


def compute_norms_on_owners(step: StepGraph, owned: Ownership) -> None:
    """Computes scalars of gradients, such as terms of a global norm, on their owners only.

    before: all wafers:        g = mean_wait(...) for all;      s = sum_of_squares(g)
    after:  all wafers:        g = mean_wait(...) for wafer 1;  s = sum_of_squares(g)
            before s is read:  s', ... = wafer_pick(s, ...; roots=(1, ...))

    The other wafers compute s from invalid memory, and discard it: only scalars are exchanged, all
    that are read together in one collective. The pass does not fire where more than scalars depend
    on a mean outside of its owner's update, or where another owner's update reads the scalar.

    Args:
        step: in schedule order, roots of means set; changed in place.
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
    for start, measured in list(found.items()):  # valid on no wafer
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
    """The nodes that compute scalars from a mean; None if it is needed on all wafers."""
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
    """Broadcasts scalars right before the first node that reads one of them on all wafers."""
    graph = step.graph
    picked: dict[Value, Value] = {}
    waiting: dict[Value, None] = {}
    nodes: list[Node] = []

    def emit(layer: int, direction: str) -> None:
        picks = tuple(roots[number] for number in waiting)
        types = [number.type for number in waiting]
        pick = graph.make_node(PICK, list(waiting), {"roots": picks}, types)
        pick.layer, pick.direction = layer, direction
        picked.update(zip(waiting, pick.outputs))
        waiting.clear()
        nodes.append(pick)

    for node in graph.nodes:
        if node not in measuring and owned.of(node) == EVERYWHERE:
            if any(value in waiting for value in node.inputs):
                emit(node.layer, node.direction)
            node.inputs = [picked.get(value, value) for value in node.inputs]
        nodes.append(node)
        waiting.update(dict.fromkeys(value for value in node.outputs if value in roots))
    if not waiting.keys().isdisjoint(graph.outputs):
        emit(-1, UPDATE)
    graph.nodes = nodes
    graph.outputs = [picked.get(value, value) for value in graph.outputs]
