"""What the backward pass of each layer keeps, makes again or spills, what that saves and costs.

The cheap part of a layer is what moves memory rather than computes, such as outputs of activation
functions and norms; the whole is everything, from what crosses from earlier layers. Which are
chosen is the affair of compiler/fit_activations.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from cerebras_tf.compiler.staging import may_rest
from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.program import Cost, Program
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import lookup, viewed
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.passes.recompute_activations import Segment, remaking

KEEP, CHEAP, WHOLE = "keep", "cheap", "whole"
# What is kept rests in the store between the passes; the cheap part may be made again from it.
SPILL, CHEAP_SPILL = "spill", "cheap and spill"
KINDS = (CHEAP, WHOLE, SPILL, CHEAP_SPILL)
# Operations for every byte that a cheap node reads or writes. Elementwise work and norms have 1 to
# 3, products with K columns have K / 2.
CHEAP_FLOPS_A_BYTE = 4


@dataclass(frozen=True)
class Choice:
    """What one segment of layers does with what its backward pass reads.

    Attributes:
        kind: KEEP or one of KINDS.
        segment: the layers, and what they make again.
        saved_bytes: how much less memory they hold between forward and backward pass.
        flops: operations that a step makes more.
        seconds: time that a step takes more, predicted.
        spilled_bytes: bytes that are written to the store's disk, and read again.
    """

    kind: str
    segment: Segment
    saved_bytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    spilled_bytes: int = 0


@dataclass(frozen=True)
class Spilling:
    """What it takes to let activations rest in the store.

    Attributes:
        most_bytes: of one layer: the store must hold them when the layer's turn comes again.
        seconds_a_byte: time that a step takes more.
    """

    most_bytes: int
    seconds_a_byte: float


class Activations:
    """What the layers of a step keep, what they may do instead, what that saves and costs."""

    def __init__(
        self, step: StepGraph, program: Program, speeds: Speeds, spilling: Optional[Spilling] = None
    ) -> None:
        """Reads the step.

        Args:
            step: in the order of the schedule, fused.
            program: assembled from it: gives the prices.
            speeds: how fast the machine is.
            spilling: what spilling costs; None where nothing can be spilled.
        """
        self._speeds = speeds
        self._spilling = spilling
        self._operands_of: dict[Value, list[Value]] = {}
        run = [node for node in step.graph.nodes if node.op not in ("constant", GRADIENT)]
        self._costs = {node: item.cost for node, item in zip(run, program.instructions())}
        self._position = {node: i for i, node in enumerate(run)}
        # Layers whose backward pass reads a value; none of values that others read behind it.
        self._readers: dict[Value, set[int]] = {}
        self._held: set[Value] = {viewed(value) for value in step.graph.outputs}
        for node in run:
            if lookup(node.op).collective:  # all wafers would have to choose the same
                self._held.update(node.outputs)
            if node.direction != "forward":
                for value in map(viewed, node.inputs):
                    if node.direction == "backward":
                        self._readers.setdefault(value, set()).add(node.layer)
                    else:
                        self._held.add(value)
        self._made_in: dict[int, list[Value]] = {}
        for value in self._readers:
            made = value.node
            if made is not None and made.op != "constant" and made.direction == "forward":
                self._made_in.setdefault(made.layer, []).append(value)

    def choice(self, kind: str, first: int, last: int) -> Choice:
        """The choice of a kind for the layers from first to last; KEEP where nothing is saved."""
        nothing = Choice(KEEP, Segment(first, last, frozenset()))
        if kind == KEEP:
            return nothing
        if kind == SPILL:
            return self._spilling_too(nothing, kind, self._wanted(first, last))
        if kind == CHEAP_SPILL:
            kept, _ = self._kept(CHEAP, first, last)
            return self._spilling_too(self.choice(CHEAP, first, last), kind, kept)
        kept, added = self._kept(kind, first, last)
        wanted = self._wanted(first, last)
        again = self._again([v for v in wanted if v not in kept], kept, first, last)
        if not again:
            return nothing
        costs = [self._costs[node] for node in {v.node for v in again if v.node is not None}]
        return Choice(
            kind,
            Segment(first, last, frozenset(again)),
            sum(_bytes(v) for v in wanted if v not in kept) - added,
            sum(cost.flops for cost in costs),
            sum(self._speeds.seconds(cost) for cost in costs),
        )

    def _spilling_too(self, choice: Choice, kind: str, kept: Iterable[Value]) -> Choice:
        """The choice with as much spilled of what it keeps as may be, the largest values first."""
        if self._spilling is None:
            return choice
        left, spilled = self._spilling.most_bytes, []
        for value in sorted(kept, key=lambda v: (-_bytes(v), self._position_of(v), v.index)):
            if may_rest(value) and _bytes(value) <= left:
                left -= _bytes(value)
                spilled.append(value)
        if not spilled:
            return choice
        size = sum(map(_bytes, spilled))
        return replace(
            choice,
            kind=kind,
            segment=replace(choice.segment, spilled=frozenset(spilled)),
            saved_bytes=choice.saved_bytes + size,
            seconds=choice.seconds + size * self._spilling.seconds_a_byte,
            spilled_bytes=size,
        )

    def _wanted(self, first: int, last: int) -> list[Value]:
        """Values of the layers that are kept for their own backward passes only, last first."""
        found = [
            value
            for layer in range(first, last + 1)
            for value in self._made_in.get(layer, ())
            if self._is_own(value, first, last)
        ]
        return sorted(found, key=lambda v: (self._position_of(v), v.index), reverse=True)

    def _is_own(self, value: Value, first: int, last: int) -> bool:
        readers = self._readers.get(value, ())
        return value not in self._held and all(first <= layer <= last for layer in readers)

    def _position_of(self, value: Value) -> int:
        assert value.node is not None
        return self._position[value.node]

    def _kept(self, kind: str, first: int, last: int) -> tuple[set[Value], int]:
        """Values that are kept, and bytes among them that would not be alive otherwise."""
        wanted = self._wanted(first, last)
        kept, added = set(wanted), 0
        for value in wanted:
            if not self._may_remake(kind, value.node):
                continue
            found = self._needed_for(kind, value, kept - {value}, first, last)
            more = sum(map(_bytes, found))
            if more < _bytes(value):
                kept.discard(value)
                kept.update(found)
                added += more
        return kept, added

    def _needed_for(
        self, kind: str, value: Value, kept: set[Value], first: int, last: int
    ) -> set[Value]:
        """What must be kept besides so that a value can be made again."""
        needed: set[Value] = set()
        seen, stack = {value}, [value]
        while stack:
            for operand in self._operands(stack.pop()):
                if operand in seen or operand in kept or self._is_alive(operand, first, last):
                    continue
                seen.add(operand)
                assert operand.node is not None
                inside = first <= operand.node.layer <= last
                if inside and self._may_remake(kind, operand.node):
                    stack.append(operand)
                else:
                    needed.add(operand)
        return needed

    def _again(
        self, values: Sequence[Value], kept: set[Value], first: int, last: int
    ) -> set[Value]:
        """Values that are made again where these are."""
        again, stack = set(values), list(values)
        while stack:
            for operand in self._operands(stack.pop()):
                if operand in again or operand in kept or self._is_alive(operand, first, last):
                    continue
                assert operand.node is not None
                if first <= operand.node.layer <= last:
                    again.add(operand)
                    stack.append(operand)
        return again

    def _is_alive(self, value: Value, first: int, last: int) -> bool:
        """Whether a value is in memory in the backward pass of the layers anyway."""
        made = value.node
        if made is None or made.op == "constant" or made.direction != "forward":
            return True
        if value in self._held:
            return True
        if first <= made.layer <= last:
            return value in self._readers and not self._is_own(value, first, last)
        return value in self._readers

    def _may_remake(self, kind: str, node: Optional[Node]) -> bool:
        """Whether a node may be run again."""
        if node is None:
            return False
        cost: Cost = self._costs[node]
        moved = cost.bytes_read + cost.bytes_written
        return kind == WHOLE or cost.flops <= CHEAP_FLOPS_A_BYTE * moved

    def _operands(self, value: Value) -> list[Value]:
        """What a value is made of, views looked through."""
        if value not in self._operands_of:
            assert value.node is not None
            operands = remaking(value.node, [value]).inputs
            self._operands_of[value] = [viewed(operand) for operand in operands]
        return self._operands_of[value]


def _bytes(value: Value) -> int:
    return value.type.most_bytes if value.type.is_bounded else 0
