"""Finds the values to spill to the store within a step: waiting gradients, and activations.

If a model clips by the norm of all gradients, or detects overflow in them, no variable can be
updated before the end of the reverse pass. A gradient is then spilled after its last reader there,
and read again for the update:

    backward of layer 7:  g = parameter_gradient(...); s = sum_of_squares(g)     -> g to the store
    ...
    update of layer 7:    g from the store; w' = w - rate * factor * g

A gradient is not spilled if its update runs right after it, if several groups of nodes read it
late, or if it is small. Activations that compiler/fit_activations.py spills are handled in the same
way between a layer's forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import is_view

# Prefix of the names of spilled activations.
SPILLED = "spilled_activation"
# Smaller values are not spilled: many small records cost more time than they save memory.
_LEAST_BYTES = 1 << 16


@dataclass(frozen=True)
class Staged:
    """A value that is spilled.

    Attributes:
        group: number of the group after which it is spilled.
        readers: nodes that read it from the store.
    """

    name: str
    group: int
    readers: frozenset[Node]


def can_spill(value: Value) -> bool:
    """Whether a value has a static shape and is large enough to spill."""
    return value.type.is_static and value.type.bytes >= _LEAST_BYTES


def find_spilled(
    groups: Sequence[Sequence[Node]], step: StepGraph, spilled: Collection[Value] = ()
) -> dict[Value, Staged]:
    """The values to spill.

    Args:
        groups: nodes in schedule order; nodes of a group run together.
    """
    number = {node: index for index, nodes in enumerate(groups) for node in nodes}
    readers: dict[Value, list[Node]] = {}
    for nodes in groups:
        for node in nodes:
            for value in dict.fromkeys(node.inputs):
                readers.setdefault(value, []).append(node)
    outputs = set(step.graph.outputs)
    named = {
        value: f"{variable}/staged_gradient_{index}"
        for variable, gradients in step.gradients.items()
        for index, value in enumerate(value for node in gradients for value in node.outputs)
    }
    made = [value for nodes in groups for node in nodes for value in node.outputs]
    found_there = [value for value in made if value in spilled]
    named.update((value, f"{SPILLED}/{index}") for index, value in enumerate(found_there))
    found = {}
    for value, name in named.items():
        if can_spill(value):
            group, late = _late_readers(value, readers, number, outputs)
            if late:
                # Programs for other sizes share the store, so the type is part of the name.
                found[value] = Staged(f"{name}/{value.type}", group, late)
    return found


def _late_readers(
    value: Value,
    readers: Mapping[Value, Sequence[Node]],
    number: Mapping[Node, int],
    outputs: set[Value],
) -> tuple[int, frozenset[Node]]:
    """The last group that reads a value early, and the nodes that read it late, if it can spill."""
    node = value.node
    assert node is not None
    all_readers = set(_through_views(value, readers))
    if node.op == GRADIENT:  # whose output is its operand
        all_readers.update(_through_views(node.inputs[value.index], readers))
    if not all_readers - {node} or _is_kept(value, readers, outputs):
        return -1, frozenset()
    groups = sorted({number[reader] for reader in all_readers} | {number[node]})
    last, before = groups[-1], groups[-2] if len(groups) > 1 else groups[-1]
    direct = frozenset(n for n in readers.get(value, ()) if number[n] == last)
    reached = {n for d in direct for n in [d, *_through_view(d, readers)]}
    if last - before < 2 or {n for n in all_readers if number[n] == last} - reached:
        return -1, frozenset()
    return before, direct


def _through_view(node: Node, readers: Mapping[Value, Sequence[Node]]) -> Iterator[Node]:
    if is_view(node):
        for value in node.outputs:
            yield from _through_views(value, readers)


def _through_views(value: Value, readers: Mapping[Value, Sequence[Node]]) -> Iterator[Node]:
    """Nodes that read a value, also through views."""
    for node in readers.get(value, ()):
        yield node
        yield from _through_view(node, readers)


def _is_kept(value: Value, readers: Mapping[Value, Sequence[Node]], outputs: set[Value]) -> bool:
    """Whether a value or a view of it is a result of the step."""
    shown = [v for n in _through_views(value, readers) if is_view(n) for v in n.outputs]
    return any(item in outputs for item in [value, *shown])
