"""Recomputes activations in the backward pass instead of keeping them (gradient checkpointing).

Before: `%h = f(%x)` of the forward pass is read by backward nodes of its layer; after: they read
`%h.1 = f(%x)`, a copy before the first of them, and the memory of %h is free in between. The pass
runs after the fusion of elementwise nodes and copies fused nodes: the same kernel on the same
operands gives the same bits. Any op may be recomputed, as random numbers depend on step and seeds
only. compiler/fit_activations.py chooses what is recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ir.binding import copy_graph
from cerebras_tf.ops import Builder, is_view, viewed
from cerebras_tf.passes.fuse_elementwise import FUSED
from cerebras_tf.passes.rewrite import rewrite


@dataclass(frozen=True)
class Segment:
    """Consecutive layers that recompute activations.

    Attributes:
        last: the highest layer, inclusive.
        recomputed: values of forward nodes of these layers that are not kept for their backward
            nodes; instead of a view, the value that owns its memory.
        spilled: values that are spilled in between (compiler/spilling.py). Their backward nodes get
            views of their own, since those of the forward pass show memory that is freed.
    """

    first: int
    last: int
    recomputed: frozenset[Value]
    spilled: frozenset[Value] = frozenset()


@dataclass(frozen=True)
class Recipe:
    """Operands and attributes by which some outputs of a node are recomputed."""

    inputs: Sequence[Value]
    attrs: dict[str, Any]
    outputs: Sequence[Value]


def recompute_activations(graph: Graph, segments: Iterable[Segment]) -> None:
    """Inserts copies in place.

    Args:
        graph: in schedule order, fused, with layers and directions.
        segments: disjoint. Copies of a segment's last layer are inserted where they are first read,
            those of its other layers before the segment's backward nodes.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    of_layer: dict[int, _Copies] = {}
    for segment in segments:
        copies = _Copies(segment, position)
        of_layer.update((layer, copies) for layer in range(segment.first, segment.last + 1))

    def rule(b: Builder, node: Node) -> None:
        if node.direction == "backward" and node.layer in of_layer:
            of_layer[node.layer].replace_operands(b, node)

    rewrite(graph, rule, fold=False)


class _Copies:
    def __init__(self, segment: Segment, position: dict[Node, int]) -> None:
        self._segment = segment
        self._position = position
        self._copies: dict[Value, Value] = {}
        self._started = False

    def replace_operands(self, b: Builder, node: Node) -> None:
        """Makes the node of a backward pass read copies."""
        if not self._started:
            self._started = True
            last = self._segment.last
            earlier = [
                v for v in self._segment.recomputed if v.node is not None and v.node.layer < last
            ]
            for original, copy in self._make(b, earlier):
                copy.layer = original.layer
        self._make(b, node.inputs)
        node.inputs = [self._copies.get(value, value) for value in node.inputs]

    def _make(self, b: Builder, values: Iterable[Value]) -> list[tuple[Node, Node]]:
        """Emits copies of values and of what they need, in forward order; returns (node, copy)."""
        made: list[tuple[Node, Node]] = []
        recipes: dict[Node, Recipe] = {}
        stack = list(values)
        while stack:
            value = stack.pop()
            node = value.node
            if node is None or node in recipes or value in self._copies:
                continue
            if self._is_copied(value):
                recipes[node] = recipe = self._recipe(node)
                stack.extend(recipe.inputs)
        for node in sorted(recipes, key=lambda node: self._position[node]):
            recipe = recipes[node]
            operands = [self._copies.get(value, value) for value in recipe.inputs]
            b.source = node.source
            copy = b.emit(node.op, operands, recipe.attrs, [v.type for v in recipe.outputs])
            made.append((node, copy))
            for old, new in zip(recipe.outputs, copy.outputs):
                if self._is_copied(old):
                    self._copies[old] = new
        return made

    def _is_copied(self, value: Value) -> bool:
        base = viewed(value)
        return base in self._segment.recomputed or (
            base in self._segment.spilled and base is not value
        )

    def _recipe(self, node: Node) -> Recipe:
        return recompute_recipe(node, [v for v in node.outputs if self._is_copied(v)])


def recompute_recipe(node: Node, wanted: Collection[Value]) -> Recipe:
    """How some of a node's outputs are recomputed bit for bit.

    Unneeded nodes of a fused body are removed, unless that might change how a kernel rounds:
    multiply and add contract to one operation only if the product has one reader, so every value
    that is read within the body must keep all its readers.
    """
    whole = Recipe(node.inputs, dict(node.attrs), node.outputs)
    if node.op != FUSED or is_view(node) or len(wanted) == len(node.outputs):
        return whole
    body: Graph = node.attrs["body"]
    outputs = [value for value in node.outputs if value in wanted]
    if not _rounds_alike(body, [body.outputs[value.index] for value in outputs]):
        return whole
    part = copy_graph(body, lambda attribute: attribute)
    part.outputs = [part.outputs[value.index] for value in outputs]
    part.prune()
    read = {value for inner in part.nodes for value in inner.inputs} | set(part.outputs)
    inputs = [value for value, x in zip(node.inputs, part.inputs) if x in read]
    part.inputs = [x for x in part.inputs if x in read]
    return Recipe(inputs, {**node.attrs, "body": part}, outputs)


def _rounds_alike(body: Graph, wanted: Sequence[Value]) -> bool:
    """Whether nothing else reads the values that the wanted outputs are computed from."""
    inside: set[Node] = set()
    needed = set(wanted)
    for node in reversed(body.nodes):
        if any(value in needed for value in node.outputs):
            inside.add(node)
            needed.update(node.inputs)
    inner = {value for node in inside for value in node.inputs if _is_computed(value)}
    if any(value in inner and value not in wanted for value in body.outputs):
        return False
    others = (node for node in body.nodes if node not in inside)
    return not any(value in inner for node in others for value in node.inputs)


def _is_computed(value: Value) -> bool:
    return value.node is not None and value.constant is None and value.type.is_floating
