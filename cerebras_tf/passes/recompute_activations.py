"""Makes forward values again in the backward pass, where they are not to be kept.

Before: `%h = f(%x)` of the forward pass is read by backward nodes of its layer; after: they read
`%h.1 = f(%x)`, a copy in front of the first of them, and the memory of %h is free in between. It
must come behind the fusion of elementwise nodes, and copies what fusion made: the same kernel on
the same operands gives the same bits, so training is what it would be without. That sets it apart
from recompute_elementwise, which comes before fusion and decides what need not be written at all.

Any op may be run again: its results follow from operands and attributes, random numbers from step
and seeds. What is made again is the planner's choice (compiler/activations.py).
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
    """Neighbouring layers that make forward values again.

    Attributes:
        first: the lowest layer.
        last: the highest layer, inclusive.
        again: values that forward nodes of these layers make, and whose memory is not kept for
            their backward nodes; of a view it is the value that it looks into.
        spilled: values that will rest in the store meanwhile (compiler/staging.py). Their backward
            nodes get views of their own, since those of the forward pass look into memory.
    """

    first: int
    last: int
    again: frozenset[Value]
    spilled: frozenset[Value] = frozenset()


@dataclass(frozen=True)
class Recipe:
    """How outputs of a node are made again.

    Attributes:
        inputs: operands.
        attrs: attributes; the op is the node's.
        outputs: the node's outputs that come out, in order.
    """

    inputs: Sequence[Value]
    attrs: dict[str, Any]
    outputs: Sequence[Value]


def recompute_activations(graph: Graph, segments: Iterable[Segment]) -> None:
    """Copies in place.

    Args:
        graph: in the order of the schedule, fused; layers and directions of all nodes set.
        segments: no layer in two of them. Copies of a segment's last layer stand where they are
            first read, those of layers before it in front of the segment's backward nodes.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    of_layer: dict[int, _Copies] = {}
    for segment in segments:
        copies = _Copies(segment, position)
        of_layer.update((layer, copies) for layer in range(segment.first, segment.last + 1))

    def rule(b: Builder, node: Node) -> None:
        if node.direction == "backward" and node.layer in of_layer:
            of_layer[node.layer].give_to(b, node)

    rewrite(graph, rule, fold=False)


class _Copies:
    """The copies of one segment."""

    def __init__(self, segment: Segment, position: dict[Node, int]) -> None:
        self._segment = segment
        self._position = position
        self._copies: dict[Value, Value] = {}
        self._begun = False

    def give_to(self, b: Builder, node: Node) -> None:
        """Makes the node of a backward pass read copies."""
        if not self._begun:
            self._begun = True
            last = self._segment.last
            earlier = [v for v in self._segment.again if v.node is not None and v.node.layer < last]
            for original, copy in self._make(b, earlier):
                copy.layer = original.layer
        self._make(b, node.inputs)
        node.inputs = [self._copies.get(value, value) for value in node.inputs]

    def _make(self, b: Builder, values: Iterable[Value]) -> list[tuple[Node, Node]]:
        """Emits copies of values and of what they need, in the order of the forward pass.

        Returns:
            (node, its copy) of all that were made.
        """
        made: list[tuple[Node, Node]] = []
        recipes: dict[Node, Recipe] = {}
        stack = list(values)
        while stack:
            value = stack.pop()
            node = value.node
            if node is None or node in recipes or value in self._copies:
                continue
            if self._is_made(value):
                recipes[node] = recipe = self._recipe(node)
                stack.extend(recipe.inputs)
        for node in sorted(recipes, key=lambda node: self._position[node]):
            recipe = recipes[node]
            operands = [self._copies.get(value, value) for value in recipe.inputs]
            b.source = node.source
            copy = b.emit(node.op, operands, recipe.attrs, [v.type for v in recipe.outputs])
            made.append((node, copy))
            for old, new in zip(recipe.outputs, copy.outputs):
                if self._is_made(old):
                    self._copies[old] = new
        return made

    def _is_made(self, value: Value) -> bool:
        """Whether a copy of a value is made: it is not kept, or a view of what is spilled."""
        base = viewed(value)
        return base in self._segment.again or (base in self._segment.spilled and base is not value)

    def _recipe(self, node: Node) -> Recipe:
        return remaking(node, [v for v in node.outputs if self._is_made(v)])


def remaking(node: Node, wanted: Collection[Value]) -> Recipe:
    """How the wanted ones among a node's outputs are made again, bit for bit.

    Of a fused body what leads to nothing wanted is left out, unless that might change how a kernel
    rounds: multiply and add contract to one operation only where the product has one reader, so
    every number that is read within the body must keep all its readers.
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
    """Whether numbers that the wanted outputs are made of are read by nothing else."""
    inside: set[Node] = set()
    needed = set(wanted)
    for node in reversed(body.nodes):
        if any(value in needed for value in node.outputs):
            inside.add(node)
            needed.update(node.inputs)
    inner = {value for node in inside for value in node.inputs if _is_computed(value)}
    if any(value in inner and value not in wanted for value in body.outputs):
        return False
    beside = (node for node in body.nodes if node not in inside)
    return not any(value in inner for node in beside for value in node.inputs)


def _is_computed(value: Value) -> bool:
    return value.node is not None and value.constant is None and value.type.is_floating
