"""What stands at padded places, and what is computed of a batch on the host to be sure of it."""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from cerebras_tf.ir import Array, Graph, Node, StepGraph, Value
from cerebras_tf.ir.packing import REAL, Check, TokenSpace
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import lookup
from cerebras_tf.passes.padding_facts import Fact, PaddingFacts

# A value that follows from features, the layout of its rows, and the operation that needs it.
Needed = tuple[Value, int, str]


class Pad(NamedTuple):
    """What the padded program has at padded places of a value.

    Attributes:
        value: the scalar that all of them are, if the values of `checks` are 0 there; None where
            nothing is known.
        checks: values that must be 0 at padded places.
        hiding: a value that was added; where it hides padding, so does the sum.
    """

    value: Optional[Array]
    checks: tuple[Needed, ...]
    hiding: Optional[Needed]


NOTHING = Pad(None, (), None)


class Pads:
    """What stands at padded places of values that have rows.

    Attributes:
        held: what was found so far.
    """

    def __init__(self, facts: PaddingFacts) -> None:
        self.held: dict[Value, Pad] = {}
        self._facts = facts

    def get(self, value: Value) -> Pad:
        """What stands there."""
        return self.held.get(value, NOTHING)

    def of(self, node: Node, fact: Fact) -> Pad:
        """What the padded program has at padded places of the output of a node, done by rows."""
        hiding = self._hiding(node, fact)
        zero = self.zero(node, fact) or self._chosen(node, fact)
        if zero is not None:
            return zero._replace(hiding=hiding)
        pads = self._operands(node)
        values = [None if pad is None else pad.value for pad in pads]
        if lookup(node.op).elementwise and all(value is not None for value in values):
            (found,) = evaluate(node.op, [np.asarray(value) for value in values], node.attrs)
            checks = tuple(check for pad in pads if pad is not None for check in pad.checks)
            return Pad(np.asarray(found), checks, hiding)
        return Pad(None, (), hiding)

    def zero(self, node: Node, fact: Fact) -> Optional[Pad]:
        """That the output is 0 there, as an operand is by itself or by a check of the batch."""
        ruled, pads = self._facts.ruled[node], self._operands(node)
        nothing = np.zeros((), node.outputs[0].type.numpy_dtype)
        candidates = [i for i in lookup(node.op).zeros if i in ruled.operands]
        for i in candidates:
            pad = pads[i]
            if pad is not None and pad.value is not None and not pad.value.any():
                return Pad(nothing, pad.checks, None)
        for i in candidates:
            if self._can_check(node.inputs[i], fact):
                return Pad(nothing, ((node.inputs[i], fact.layout, node.source),), None)
        return None

    def _can_check(self, value: Value, fact: Fact) -> bool:
        """Whether it can be seen in a batch what a value holds at padded places."""
        return value in self._facts.free and fact.layout < 2

    def _hiding(self, node: Node, fact: Fact) -> Optional[Needed]:
        """What is added to rows, and may hide padding."""
        if node.op in ("identity", "stop_gradient"):
            return self.get(node.inputs[0]).hiding
        if node.op == "add":
            for i, value in enumerate(node.inputs):
                if i in self._facts.ruled[node].operands and self._can_check(value, fact):
                    return value, fact.layout, node.source
        return None

    def _chosen(self, node: Node, fact: Fact) -> Optional[Pad]:
        """The operand that a selection takes where its condition is False, as a check finds."""
        if node.op != "select" or 0 not in self._facts.ruled[node].operands:
            return None
        condition, other = node.inputs[0], self._operands(node)[2]
        if other is None or other.value is None or not self._can_check(condition, fact):
            return None
        return Pad(other.value, (*other.checks, (condition, fact.layout, node.source)), None)

    def _operands(self, node: Node) -> list[Optional[Pad]]:
        """What stands at padded places of operands with rows; what scalar constants are."""
        found: list[Optional[Pad]] = []
        for value in node.inputs:
            constant = value.constant
            if value in self._facts.rows:
                found.append(self.get(value))
            elif constant is not None and constant.size == 1:
                found.append(Pad(constant.reshape(()), (), None))
            else:
                found.append(None)
        return found


class HostValues:
    """The graph that is computed of a batch's features before the step, and its checks.

    Attributes:
        graph: inputs are features; outputs are what spaces and checks read.
        checks: what a batch must fulfil.
    """

    def __init__(self, step: StepGraph) -> None:
        self.graph = Graph("packing")
        self.checks: list[Check] = []
        self._names = {value: name for name, value in step.features.items()}
        self._copies: dict[Value, Value] = {}
        self._places: dict[Value, int] = {}

    def output(self, value: Value) -> int:
        """The position among the graph's outputs of a value that follows from features."""
        if value not in self._places:
            self._places[value] = len(self.graph.outputs)
            self.graph.outputs.append(self._copy(value))
        return self._places[value]

    def _copy(self, wanted: Value) -> Value:
        """The value in the host's graph; operands are copied before what reads them."""
        pending = [wanted]
        while pending:
            value = pending[-1]
            node = value.node
            if value in self._copies:
                pending.pop()
            elif node is None:
                self._copies[value] = self.graph.add_input(self._names[value], value.type)
            else:
                missing = [operand for operand in node.inputs if operand not in self._copies]
                pending.extend(missing)
                if missing:
                    continue
                operands = [self._copies[operand] for operand in node.inputs]
                types = [output.type for output in node.outputs]
                made = self.graph.make_node(node.op, operands, node.attrs, types, node.source)
                self.graph.nodes.append(made)
                self._copies.update(zip(node.outputs, made.outputs))
        return self._copies[wanted]

    def note(self, kind: str, space: TokenSpace, value: Value, layout: int, source: str) -> None:
        """A check of a value at padded places."""
        self._add(Check(kind, space.name, self.output(value), layout, source=source))

    def check(self, kind: str, space: TokenSpace, number: int, source: str) -> None:
        """A check of lengths."""
        self._add(Check(kind, space.name, number=number, source=source))

    def check_places(
        self,
        space: TokenSpace,
        indices: Value,
        layout: int,
        source: str,
        among: Optional[TokenSpace] = None,
    ) -> None:
        """That positions are those of real tokens.

        Args:
            space: of the tokens.
            indices: [B], [B, P] positions in each sequence (1 for B: the same in all of them), or
                of all places where layout is 0.
            layout: 1 or 0.
            source: the operation that reads there.
            among: the list of those positions that count; None where all do.
        """
        listed = "" if among is None else among.name
        at = self.output(indices)
        self._add(Check(REAL, space.name, at, layout, among=listed, source=source))

    def _add(self, check: Check) -> None:
        if check not in self.checks:
            self.checks.append(check)
