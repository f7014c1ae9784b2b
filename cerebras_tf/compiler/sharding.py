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
from cerebras_tf.passes.average_gradients import START

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
