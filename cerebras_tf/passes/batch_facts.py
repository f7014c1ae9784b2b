"""Proves that micro-batches compute the step of the whole batch, or refuses them.

They do if the mean of their gradients is the gradient of the whole batch: if no record depends on
another one, the loss is a mean over records, and nothing else depends on the number of records. An
op that is not known to keep this is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Array, Node, StepGraph, Value
from cerebras_tf.ir.graph import Graph
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import draws, lookup

WAFER_SUM = "wafer_sum"
# One record for each index of the first axis, or for equally many consecutive ones.
RECORDS = "records"
# Linear in sums over records; another function of such sums.
LINEAR, NUMBER = "linear", "number"
# Values of records that may depend on other records.
JOINED = "joined"
# Added to the power of the incoming gradients of a custom gradient: a result has it once only if it
# is linear in them.
_MARK = 1000
# None: the value depends on the number of records in an unknown way.
Power = Optional[int]


@dataclass(frozen=True)
class Fact:
    """How a value depends on a batch.

    Attributes:
        kind: RECORDS, LINEAR, NUMBER or JOINED.
        node: the node that makes it JOINED or NUMBER, for errors.
    """

    kind: str
    node: Optional[Node] = None


class BatchFacts:
    """Facts of a step before differentiation; a value without one does not depend on the batch.

    A value may still depend on the number of records. If a batch is split into k micro-batches, a
    value of a micro-batch is k**power times that of the batch: the power is -1 for the number of
    records and for a sum over them, 0 for a mean, None if unknown. Powers are found by comparing
    the step with that of a larger batch.

    Args:
        step: for some number of records.
        larger: the same step for more records; None if the model is built for one number of them.
            A constant that is a multiple of that number is then assumed to count records.
        given: names of the features that hold rows of the batch.

    Raises:
        UnsupportedOpError: the two steps have different operations.
    """

    def __init__(
        self, step: StepGraph, larger: Optional[StepGraph], given: Collection[str]
    ) -> None:
        self._nodes = list(step.graph.nodes)  # the step may be changed later
        self._results, self._updates = dict(step.results), dict(step.updates)
        self._facts: dict[Value, Fact] = {}
        self._shared = set[Value]()  # depends on sums over wafers
        self._powers: dict[Value, Power] = {}  # those other than 0
        self._larger = None if larger is None else _matched(step, larger)
        self._records, self._ratio = 1, 1.0
        for name, value in step.features.items():
            if name in given and value.type.rank:
                self._facts[value] = Fact(RECORDS)
                self._records = _rows(value)
                if larger is not None:
                    self._ratio = _rows(larger.features[name]) / self._records
        for node in self._nodes:
            self._visit(node)

    def require_mean_losses(self) -> None:
        """Raises UnsupportedOpError where a gradient is not that of a mean over records.

        A loss that is scaled by sums over wafers is already that of all micro-batches. If it is
        multiplied by its count and divided by that of all micro-batches, the count is assumed to be
        the number that it is a mean of.
        """
        for node in self._nodes:
            if node.op == "gradient":
                self._check(node)

    def require_updates(self) -> None:
        """Raises UnsupportedOpError where an update depends on the number of records."""
        for name, value in self._updates.items():
            if self._power(value) != 0:
                raise UnsupportedOpError(
                    "micro_batches: an update must not depend on the number of examples of a "
                    f"batch. Received: '{name}', which does, for example by a learning rate that "
                    "tf.shape(features) scales. Compute it from a number in params, or remove "
                    "micro_batches."
                )

    def combination(self, name: str) -> tuple[Power, bool]:
        """How the result of a batch follows from the results of micro-batches.

        Returns:
            The power; whether the mean over micro-batches, divided by it, is exact.
        """
        value = self._results[name]
        fact, power = self._facts.get(value), self._power(value)
        exact = fact is None or fact.kind == LINEAR or value in self._shared
        return power, exact and power is not None

    def _visit(self, node: Node) -> None:
        if node.op == WAFER_SUM:
            self._shared.update(node.outputs)
            fact, power = self._facts.get(node.inputs[0]), self._power(node.inputs[0])
            is_sum = fact is None or fact.kind == LINEAR
            self._set_power(node.output, power + 1 if is_sum and power is not None else None)
            return
        found = [self._facts.get(value) for value in node.inputs]
        if node.op == "custom_gradient":  # whose outputs are its operands
            passed = zip(node.outputs, node.inputs)
            self._shared.update(output for output, x in passed if x in self._shared)
            self._check_backward(node)
        elif self._follows_from_sums(node, found):
            self._shared.update(node.outputs)
        if any(found):
            made = zip(node.outputs, self._of(node, found))
            self._facts.update((value, fact) for value, fact in made if fact is not None)
        if node.op in ("gradient", GRADIENT):
            return
        for i, value in enumerate(node.outputs):
            if node.op == "custom_gradient":
                self._set_power(value, self._power(node.inputs[i]))
            else:
                self._set_power(value, self._power_made(node, value))

    def _check_backward(self, node: Node) -> None:
        """Raises UnsupportedOpError unless a custom gradient is linear, record by record.

        Cotangents get a large power, so that only what is linear in them keeps it.
        """
        backward, count = node.attrs["backward"], node.attrs["xs"]
        captured = node.inputs[count:]
        for value, operand in zip(backward.inputs, captured):
            self._set_captured(value, operand)
        for value, x in zip(backward.inputs[len(captured) :], node.inputs):
            self._facts[value] = Fact(RECORDS if self._has_records(x) else LINEAR)
            power = self._power_of_cotangent(x)
            self._set_power(value, None if power is None else _MARK + power)
        for inner in backward.nodes:
            if inner.op == "gradient":
                self._visit_inner_gradient(inner)
            else:
                self._visit(inner)
        for place, value in zip(node.attrs["gives"], backward.outputs):
            x, constant = node.inputs[place], value.constant
            if constant is not None and not constant.any():
                continue
            fact, power = self._facts.get(value), self._power_of_cotangent(x)
            kind = RECORDS if self._has_records(x) else LINEAR
            known = power is not None and self._power(value) == _MARK + power
            if not known or fact is None or fact.kind != kind:
                raise UnsupportedOpError(
                    "micro_batches: a custom gradient must be linear in the incoming gradient, "
                    f"example by example. Received: '{node.source}'. Apply it to the gradients of "
                    "the optimizer, or remove micro_batches."
                )

    def _visit_inner_gradient(self, node: Node) -> None:
        """A gradient inside of a custom gradient, as of tf.recompute_grad: linear in its dys."""
        ys, dys, xs = node.attrs["ys"], sum(node.attrs["dys"]), node.attrs["xs"]
        seeds = node.inputs[ys : ys + dys]
        powers = {self._power(value) for value in seeds}
        by_record = dys == ys and all(map(self._has_records, node.inputs[: ys + dys]))
        power = powers.pop() if by_record and len(powers) == 1 else None
        for x, output in zip(node.inputs[ys + dys : ys + dys + xs], node.outputs):
            self._facts[output] = Fact(RECORDS if self._has_records(x) else LINEAR)
            shift = 0 if self._has_records(x) else -1
            self._set_power(output, None if power is None else power + shift)

    def _has_records(self, value: Value) -> bool:
        fact = self._facts.get(value)
        return fact is not None and fact.kind == RECORDS

    def _power_of_cotangent(self, x: Value) -> Power:
        """The power of the gradient of a mean with respect to a value."""
        if self._has_records(x):
            return 1
        power = self._power(x)
        return None if power is None else -power

    def _set_captured(self, value: Value, operand: Value) -> None:
        """A captured value is the operand that is given for it."""
        fact = self._facts.get(operand)
        if fact is not None:
            self._facts[value] = fact
        self._set_power(value, self._power(operand))

    def _set_power(self, value: Value, power: Power) -> None:
        if power != 0:
            self._powers[value] = power

    def _power(self, value: Value) -> Power:
        if value.constant is not None:
            return self._power_of_constant(value)
        return self._powers.get(value, 0)

    def _power_of_constant(self, value: Value) -> Power:
        """By comparison with the constant of the larger batch."""
        constant = value.constant
        assert constant is not None
        if self._larger is None:
            counts = constant.size == 1 and self._counts(float(constant.reshape(())))
            return -1 if counts else 0
        other = self._larger[value].constant
        if other is None:
            return None
        if constant.shape != other.shape:
            return 0 if self._is_alike(constant, other) else None
        if np.array_equal(constant, other):
            return 0
        if constant.dtype.kind not in "iuf":
            return None
        for power in (-1, 1, -2, 2):
            if np.allclose(constant * self._ratio**-power, other, rtol=1e-6, atol=0.0):
                return power
        return None

    def _counts(self, number: float) -> bool:
        return number > 1 and number % self._records == 0

    def _is_alike(self, constant: Array, other: Array) -> bool:
        """Whether a constant has the same values for all records."""
        if not constant.ndim or constant.shape[0] % self._records:
            return False
        blocks = constant.reshape(self._records, -1)
        others = other.reshape(-1, blocks.shape[1]) if other.size % blocks.shape[1] == 0 else other
        return bool((blocks == blocks[0]).all() and (others == blocks[0]).all())

    def _depends_on_size(self, graph: Graph) -> bool:
        """Whether a graph inside of a node has constants that depend on the number of records."""
        values = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)
        return any(
            value.constant is not None and self._power_of_constant(value) != 0 for value in values
        ) or any(
            self._depends_on_size(inner) for n in graph.nodes for inner in n.subgraphs.values()
        )

    def _is_sized(self, value: Value, of_records: bool = False) -> bool:
        """Whether the number of records gives the size of an axis that has no records."""
        if self._larger is None:
            return False
        first = 1 if of_records or self._has_records(value) else 0
        return value.shape[first:] != self._larger[value].shape[first:]

    def _power_made(self, node: Node, output: Value) -> Power:
        """The power of an output; None if it is unknown."""
        fact = self._facts.get(output)
        if any(map(self._depends_on_size, node.subgraphs.values())):
            return None
        is_linear = fact is not None and fact.kind == LINEAR
        shift = 0
        if is_linear and node.op != "mean" and any(map(self._has_records, node.inputs)):
            shift = -1  # a sum over records
        elif fact is None and draws(node) and node.inputs[-2].constant is not None:
            return None if self._is_sized(output) else 0  # the same numbers in all micro-batches
        elif fact is None or fact.kind != JOINED:
            of_records = self._has_records(output)
            if self._is_sized(output, of_records):
                if fact is not None or not _works_by_rows(node):
                    return None
            elif any(self._is_sized(value, of_records) for value in node.inputs):
                if fact is not None or node.op not in ("sum", "mean"):
                    return None
                shift = -1 if node.op == "sum" else 0
        powers = [self._power(value) for value in node.inputs]
        changed = {i for i, power in enumerate(powers) if power != 0}
        if not changed:
            return shift
        guarded = [power for i, power in enumerate(powers) if not _is_guard(node, i)]
        if len(guarded) == 1 < len(powers) and guarded[0] == -1:  # a count that divides a sum
            return -1 + shift
        if node.op in ("div", "div_no_nan"):
            first, second = powers
            return None if first is None or second is None else first - second + shift
        groups = [group for group in _linear_groups(node) if changed & set(group)]
        if not changed <= {i for group in groups for i in group}:
            return None
        for group in groups:
            power = powers[group[0]]
            if power is None or any(powers[i] != power for i in group):
                return None
            shift += power
        return shift

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
        groups = _linear_groups(node)
        group = next((g for g in groups if having <= set(g)), None)
        if group is None:  # a product of such numbers, or nothing linear
            return having <= {i for g in groups for i in g}
        if any(i not in group and x in self._shared for i, x in enumerate(node.inputs)):
            return all(fact.kind == LINEAR for fact in found if fact is not None)
        return all(node.inputs[i] in self._shared or self._is_mean(node.inputs[i]) for i in having)

    def _is_mean(self, value: Value) -> bool:
        fact = self._facts.get(value)
        return fact is not None and fact.kind == LINEAR and self._power(value) == 0

    def _check(self, node: Node) -> None:
        ys = node.attrs["ys"]
        for i, value in enumerate(node.inputs[: ys + sum(node.attrs["dys"])]):
            fact, power = self._facts.get(value), self._power(value)
            shared = value in self._shared
            if (fact is None and power == 0) or (i < ys and not shared and self._is_mean(value)):
                continue
            if fact is not None and fact.kind == JOINED and fact.node is not None:
                raise UnsupportedOpError(
                    "micro_batches: the loss term of an example must depend only on that example. "
                    f"Received: '{fact.node.source}' ({fact.node.op}), which may read several "
                    "examples. Remove micro_batches."
                )
            if i < ys and shared and power == 0 and (fact is None or fact.kind != RECORDS):
                continue
            received = "no sum and no mean over the batch"
            if shared:
                received = "a number that cross_wafer_sum scales otherwise than a mean"
            elif fact is None:
                received = "a number that depends on the number of examples"
            elif fact.kind == RECORDS:
                received = "one number per record"
            elif fact.kind == LINEAR and power == -1:
                received = "a sum over the batch"
            of = value.node.source if value.node is not None else value.name
            raise UnsupportedOpError(
                "micro_batches: gradients must be gradients of a mean over the batch. Received: "
                f"'{of}', {received}. Use a mean, or multiply a sum by "
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
            return [Fact(LINEAR if node.output.type.is_floating else NUMBER)]
        ruled = lookup(node.op).rows(node, 1)
        if ruled is None:
            return None
        for i, (value, fact) in enumerate(zip(node.inputs, found)):
            if fact is not None and i not in ruled.operands:
                return None
            if fact is None and i in ruled.operands and self._power(value) is None:
                return None
        made: list[Optional[Fact]] = [Fact(JOINED, node)] * len(node.outputs)
        for i in ruled.outputs:
            made[i] = Fact(RECORDS)
        for i in ruled.sums:
            made[i] = Fact(LINEAR)
        return made

    def _is_of_records(self, value: Value) -> bool:
        """Whether the first axis has equally many consecutive indices for each record."""
        size = value.shape[0] if value.type.rank else None
        if self._larger is not None and isinstance(size, int):
            return self._larger[value].shape[0] == size * self._ratio
        try:
            return size is not None and (size // self._records) * self._records == size
        except GraphError:  # a symbolic size that is not a multiple
            return False

    def _of_numbers(self, node: Node, found: Sequence[Optional[Fact]]) -> Fact:
        """The fact of an output of operands that are sums, means or other numbers of a batch."""
        having = {i for i, fact in enumerate(found) if fact is not None}
        linear = all(fact is None or fact.kind == LINEAR for fact in found)
        if linear and any(having <= set(group) for group in _linear_groups(node)):
            return Fact(LINEAR)
        return Fact(NUMBER, node)


def _rows(value: Value) -> int:
    size = value.shape[0]
    assert isinstance(size, int), "a micro-batch has a known size"
    return size


def _starts(node: Node) -> tuple[int, ...]:
    """Where a slice begins, by axis."""
    return tuple(node.attrs.get("starts", ()))


def _works_by_rows(node: Node) -> bool:
    """Whether rows of an output follow from the same rows of operands, or are drawn."""
    is_view = node.op in ("broadcast", "reshape", "concat")
    return is_view or draws(node) or lookup(node.op).rows(node, 1) is not None


def _is_guard(node: Node, place: int) -> bool:
    """Whether an operand only keeps a number of records or terms from being 0."""
    constant = node.inputs[place].constant
    most = {"maximum": 1.0, "add": 1e-5}.get(node.op)
    if constant is None or most is None or constant.size != 1:
        return False
    return 0 < float(constant.reshape(())) <= most


def _linear_groups(node: Node) -> tuple[tuple[int, ...], ...]:
    """Groups of operands that an op is linear in; see OpDef.linear."""
    if node.op == "cast" and node.output.type.is_floating:
        return ((0,),)
    if node.op == "matmul":
        return ((0,), (1,))
    return lookup(node.op).linear


def _matched(step: StepGraph, larger: StepGraph) -> dict[Value, Value]:
    """The values of a step, with those of the same step for a larger batch."""
    matched: dict[Value, Value] = {}
    for mine, theirs in ((step.features, larger.features), (step.variables, larger.variables)):
        matched.update((value, theirs[name]) for name, value in mine.items())
    _match(step.graph, larger.graph, matched)
    return matched


def _match(graph: Graph, larger: Graph, matched: dict[Value, Value]) -> None:
    """Adds the values of two graphs, and of the graphs inside, that correspond to each other.

    Raises:
        UnsupportedOpError: their operations differ.
    """
    for node, other in itertools.zip_longest(graph.nodes, larger.nodes):
        if node is None or other is None or (node.op, node.source) != (other.op, other.source):
            differing = node or other
            raise UnsupportedOpError(
                "micro_batches: the model must have the same operations for all batch sizes. "
                f"Received: others at '{differing.source}' ({differing.op}). Remove micro_batches."
            )
        if _starts(node) != _starts(other):
            raise UnsupportedOpError(
                "micro_batches: a slice must not depend on the number of examples. Received: "
                f"'{node.source}' ({node.op}). Remove micro_batches."
            )
        matched.update(zip([*node.inputs, *node.outputs], [*other.inputs, *other.outputs]))
        for name, inner in node.subgraphs.items():
            _match(inner, other.subgraphs[name], matched)
            matched.update(zip(inner.inputs, other.subgraphs[name].inputs))
            matched.update(zip(inner.outputs, other.subgraphs[name].outputs))
