"""Proves that micro-batches compute the step of the whole batch, or refuses them.

They do if the mean of their gradients is the gradient of the whole batch: if no record depends on
another one, and the loss is a mean over records. An op that is not known to keep this is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Node, Size, StepGraph, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import lookup

WAFER_SUM = "wafer_sum"
# One record for each index of the first axis, or for equally many consecutive ones.
RECORDS = "records"
# A sum of one term for each record; a mean of them; another function of such numbers.
TOTAL, MEAN, NUMBER = "a sum over the batch", "a mean", "no sum and no mean over the batch"
# Values of records that may depend on other records.
JOINED = "joined"
# Possible powers of a number; none if they are unknown.
Powers = frozenset[int]
_NONE: Powers = frozenset([0])


@dataclass(frozen=True)
class Fact:
    """How a value depends on a batch.

    Attributes:
        kind: RECORDS, TOTAL, MEAN, NUMBER or JOINED.
        node: the node that makes it so.
        count: terms of a TOTAL.
    """

    kind: str
    node: Optional[Node] = None
    count: Size = 0


class BatchFacts:
    """Facts of a graph before differentiation; a value without one does not depend on the batch.

    Args:
        given: names of the features that hold rows of the batch.
    """

    def __init__(self, step: StepGraph, given: Collection[str], count: int) -> None:
        self._facts: dict[Value, Fact] = {}
        self._shared = set[Value]()  # depends on sums over wafers
        # By which power of the number of micro-batches a value is larger than that of the batch.
        self._powers: dict[Value, Powers] = {}
        self._records, self._count = 1, count
        for name, value in step.features.items():
            if name in given and value.type.rank:
                self._facts[value] = Fact(RECORDS)
                (size, *_) = value.shape
                assert isinstance(size, int), "a micro-batch has a known size"
                self._records = size
        self._nodes = step.graph.nodes

    def require_mean_losses(self) -> None:
        """Raises UnsupportedOpError where a gradient is not that of a mean over records.

        A loss that is scaled by sums over wafers is already that of all micro-batches.
        """
        for node in self._nodes:
            if node.op == "gradient":
                self._check(node)
            if node.op == WAFER_SUM:
                self._shared.update(node.outputs)
                powers = self._powers_of(node.inputs[0])
                self._powers[node.output] = frozenset(power + 1 for power in powers)
                continue
            found = [self._facts.get(value) for value in node.inputs]
            if node.op == "custom_gradient":  # whose outputs are its operands
                passed = zip(node.outputs, node.inputs)
                self._shared.update(output for output, x in passed if x in self._shared)
            elif self._follows_from_sums(node, found):
                self._shared.update(node.outputs)
            if any(found):
                made = zip(node.outputs, self._of(node, found))
                self._facts.update((value, fact) for value, fact in made if fact is not None)
            powers = self._powers_made(node, found)
            if powers != _NONE:
                self._powers.update((value, powers) for value in node.outputs)

    def _powers_made(self, node: Node, found: Sequence[Optional[Fact]]) -> Powers:
        """Possible powers of a node's outputs; none if they are unknown.

        A sum over the records of a micro-batch is smaller than that of the batch, on average by the
        number of micro-batches (-1). A sum over wafers, which micro-batches share, of a sum over
        records is that of the batch (0), and one of another number is larger (1). A constant that
        is a number of records may be either.
        """
        powers = [self._powers_of(value) for value in node.inputs]
        if not all(powers):
            return frozenset()
        of_records = any(fact is not None and fact.kind == RECORDS for fact in found)
        fact = self._facts.get(node.outputs[0]) if node.outputs else None
        shift = -1 if of_records and fact is not None and fact.kind == TOTAL else 0
        if node.op in ("div", "div_no_nan"):
            return frozenset(x - y + shift for x in powers[0] for y in powers[1])
        changed = [i for i, power in enumerate(powers) if power != _NONE]
        groups = [group for group in lookup(node.op).linear if set(group) & set(changed)]
        if node.op == "cast":
            groups = [(0,)]
        if not set(changed) <= {i for group in groups for i in group}:
            return frozenset()
        total = frozenset([shift])
        for group in groups:
            common = frozenset.intersection(*(powers[i] for i in group))
            total = frozenset(x + y for x in total for y in common)
        return total

    def _powers_of(self, value: Value) -> Powers:
        """Possible powers of a value."""
        constant = value.constant
        if constant is not None and constant.size == 1:
            number = float(constant.reshape(()))
            if number > 1 and number % self._records == 0:
                return frozenset([-1, 0])
        return self._powers.get(value, _NONE)

    def _follows_from_sums(self, node: Node, found: Sequence[Optional[Fact]]) -> bool:
        """Whether outputs are sums over wafers, or numbers of a batch multiplied by those.

        Such a number may be combined only linearly, and only with means: the mean of a sum, or of a
        root, over micro-batches is not that of the whole batch.
        """
        if self._shared.isdisjoint(node.inputs):
            return False
        having = {i for i, fact in enumerate(found) if fact is not None}
        if not having:
            return True
        groups = lookup(node.op).linear
        group = next((g for g in groups if having <= set(g)), None)
        if group is None:  # a product of such numbers, or nothing linear
            return having <= {i for g in groups for i in g}
        if any(i not in group and x in self._shared for i, x in enumerate(node.inputs)):
            return True
        return all(
            node.inputs[i] in self._shared or fact.kind == MEAN
            for i, fact in enumerate(found)
            if fact is not None
        )

    def _check(self, node: Node) -> None:
        ys = node.attrs["ys"]
        for i, value in enumerate(node.inputs[: ys + sum(node.attrs["dys"])]):
            fact = self._facts.get(value)
            if fact is None or (i < ys and fact.kind == MEAN and value not in self._shared):
                continue
            if fact.kind == JOINED and fact.node is not None:
                raise UnsupportedOpError(
                    "micro_batches: the loss term of an example must depend only on that example. "
                    f"Received: '{fact.node.source}' ({fact.node.op}), which may read several "
                    "examples. Remove micro_batches."
                )
            powers = self._powers.get(value, _NONE)
            is_mean = not powers or 0 in powers
            if i < ys and fact.kind != RECORDS and value in self._shared and is_mean:
                continue
            received = "one number per record" if fact.kind == RECORDS else fact.kind
            if value in self._shared:
                received = "a number that cross_wafer_sum scales otherwise than a mean"
            of = value.node.source if value.node is not None else value.name
            raise UnsupportedOpError(
                "micro_batches: gradients must be gradients of a mean over the batch. Received: "
                f"'{of}', {received}. Use tf.reduce_mean, or multiply a sum by "
                "cross_wafer_sum(1.0) / cross_wafer_sum(count), where count is its number of "
                "terms, or remove micro_batches."
            )

    def _of(self, node: Node, found: Sequence[Optional[Fact]]) -> Sequence[Optional[Fact]]:
        if node.op == "custom_gradient":  # whose outputs are its operands
            return found[: len(node.outputs)]
        if node.op in ("gradient", GRADIENT):
            return [Fact(JOINED, node)] * len(node.outputs)
        kinds = {fact.kind for fact in found if fact is not None}
        if JOINED in kinds:
            joined = next(fact for fact in found if fact is not None and fact.kind == JOINED)
            return [joined] * len(node.outputs)
        if kinds == {RECORDS}:
            return self._of_records(node, found) or [Fact(JOINED, node)] * len(node.outputs)
        if RECORDS in kinds:
            return [Fact(JOINED, node)] * len(node.outputs)
        return [self._of_numbers(node, found)] * len(node.outputs)

    def _of_records(
        self, node: Node, found: Sequence[Optional[Fact]]
    ) -> Optional[list[Optional[Fact]]]:
        """Facts of outputs where operands have records; None if records are joined."""
        if node.op == "reshape":
            return [Fact(RECORDS)] if self._is_of_records(node.output) else None
        if node.op == "mean" and 0 in node.attrs["axes"]:
            return [Fact(MEAN)]
        ruled = lookup(node.op).rows(node, 1)
        if ruled is None:
            return None
        for i, (value, fact) in enumerate(zip(node.inputs, found)):
            if fact is not None and i not in ruled.operands:
                return None
            if fact is None and i in ruled.operands and not self._is_alike(value):
                return None
        made: list[Optional[Fact]] = [Fact(JOINED, node)] * len(node.outputs)
        for i in ruled.outputs:
            made[i] = Fact(RECORDS)
        for i in ruled.sums:
            made[i] = Fact(TOTAL, node, self._terms(node, node.outputs[i], ruled.operands))
        return made

    def _terms(self, node: Node, total: Value, operands: Sequence[int]) -> Size:
        """Number of terms of each element of a sum over records."""
        x = node.inputs[operands[0]].type
        if len(operands) > 1 or not (x.is_bounded and total.type.is_bounded):
            return self._records
        return x.size // total.type.size

    def _is_of_records(self, value: Value) -> bool:
        """Whether the first axis has equally many consecutive indices for each record."""
        size = value.shape[0] if value.type.rank else None
        try:
            return size is not None and (size // self._records) * self._records == size
        except GraphError:  # a symbolic size that is not a multiple
            return False

    def _is_alike(self, value: Value) -> bool:
        """Whether a value independent of the batch, if constant, is equal for all records."""
        if value.constant is None:
            return True
        blocks = value.constant.reshape(self._records, -1)
        return bool((blocks == blocks[0]).all())

    def _of_numbers(self, node: Node, found: Sequence[Optional[Fact]]) -> Fact:
        """The fact of an output of operands that are sums, means or other numbers of a batch."""
        having = {i for i, fact in enumerate(found) if fact is not None}
        facts = {(fact.kind, fact.count) for fact in found if fact is not None}
        group = next((g for g in lookup(node.op).linear if having <= set(g)), None)
        if group is None or len(facts) > 1 or not node.output.type.is_floating:
            return Fact(NUMBER, node)
        ((kind, count),) = facts
        if kind == MEAN:
            return Fact(MEAN)
        if kind != TOTAL or having != set(group):
            return Fact(NUMBER, node)
        is_divided = node.op in ("div", "div_no_nan") and self._counts(node.inputs[1], count)
        return Fact(MEAN) if is_divided else Fact(TOTAL, node, count)

    def _counts(self, by: Value, count: Size) -> bool:
        """Whether a constant counts the records or terms of a micro-batch, not of the batch."""
        number = by.constant
        if number is None or number.size != 1 or not isinstance(count, int):
            return False
        here = {self._records, count}
        divisor = float(number.reshape(()))
        # Sums are divided by 1 and 2 for other reasons, too.
        return divisor > 2 and divisor in here - {each * self._count for each in here}
