"""One training, evaluation or prediction step as a graph with named parts.

A StepGraph ties names users know (features, variables, tensors) to values of one graph. What the
step returns is said once, by the graph's outputs; updates and results are names for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Optional

from cerebras_tf.ir.dimensions import Size
from cerebras_tf.ir.graph import Graph, Node, Value
from cerebras_tf.ir.packing import Packing
from cerebras_tf.ir.types import TensorType

# Kinds of outputs.
UPDATE = "update"
RESULT = "result"
# The op behind every gradient of a variable, where the reverse pass ends and the update begins.
GRADIENT = "parameter_gradient"


@dataclass(frozen=True)
class Variable:
    """A variable of the model: name as in checkpoints, type, and whether it is trained."""

    name: str
    type: TensorType
    trainable: bool = False


@dataclass(frozen=True)
class Draw:
    """A random op whose invocations differ in size; its seeds are a feature, int64 [3].

    Attributes:
        seed: its first seed.
        seed2: its second seed.
        size: numbers that an invocation makes; the feature's third is how many earlier ones made.
    """

    seed: int
    seed2: int
    size: Size


class Outputs(MutableMapping[str, Value]):
    """The outputs of one kind by name: a window on the graph's outputs, never a copy of them."""

    def __init__(self, step: StepGraph, kind: str) -> None:
        self._step = step
        self._kind = kind

    def __getitem__(self, name: str) -> Value:
        return self._step.graph.outputs[self._step.labels[self._kind, name]]

    def __setitem__(self, name: str, value: Value) -> None:
        key, outputs = (self._kind, name), self._step.graph.outputs
        if key in self._step.labels:
            outputs[self._step.labels[key]] = value
        else:
            self._step.labels[key] = len(outputs)
            outputs.append(value)

    def __delitem__(self, name: str) -> None:
        at = self._step.labels.pop((self._kind, name))
        del self._step.graph.outputs[at]
        for key, position in self._step.labels.items():
            if position > at:
                self._step.labels[key] = position - 1

    def __iter__(self) -> Iterator[str]:
        return (name for kind, name in self._step.labels if kind == self._kind)

    def __len__(self) -> int:
        return sum(kind == self._kind for kind, _ in self._step.labels)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass
class StepGraph:
    """A step: graph plus the meaning of its inputs and outputs.

    Attributes:
        graph: inputs are the features and the variables; outputs the updates and the results.
        features: inputs given anew at every step, by name.
        variables: current values of variables, by name.
        specs: what each of the variables is, by name.
        labels: for every output of the graph, its kind and name, with its position.
        draws: random ops whose invocations differ in size, by the feature that gives their seeds.
        blank: names of variables that have no value before the step.
        packing: how it is told where real tokens are; None where it computes padding too.
        padding_kept: what keeps padding in, where leaving it out was tried; "" otherwise.
        padding_told: how a batch tells where real tokens are, where padding could be left out of
            the step but was not asked to be.
    """

    graph: Graph
    features: dict[str, Value] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    specs: dict[str, Variable] = field(default_factory=dict)
    labels: dict[tuple[str, str], int] = field(default_factory=dict)
    draws: dict[str, Draw] = field(default_factory=dict)
    blank: set[str] = field(default_factory=set)
    packing: Optional[Packing] = None
    padding_kept: str = ""
    padding_told: Optional[Packing] = None

    @property
    def updates(self) -> MutableMapping[str, Value]:
        """Values that variables have after the step, by variable name."""
        return Outputs(self, UPDATE)

    @updates.setter
    def updates(self, values: Mapping[str, Value]) -> None:
        self._set(self.updates, values)

    @property
    def results(self) -> MutableMapping[str, Value]:
        """Values wanted from the step, by name."""
        return Outputs(self, RESULT)

    @results.setter
    def results(self, values: Mapping[str, Value]) -> None:
        self._set(self.results, values)

    @staticmethod
    def _set(outputs: MutableMapping[str, Value], values: Mapping[str, Value]) -> None:
        values = dict(values)  # may be a window on the same outputs
        for name in [name for name in outputs if name not in values]:
            del outputs[name]
        outputs.update(values)

    @property
    def gradients(self) -> dict[str, list[Node]]:
        """By variable, the `parameter_gradient` nodes where the reverse pass ends.

        A node's outputs are what the update reads: the gradient, or rows of it and their numbers.
        There are several nodes where several losses are differentiated. What is put between a node
        and its operands (staging, a mean over wafers, a sum over micro-batches) holds for whatever
        update the user wrote.
        """
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            if node.op == GRADIENT:
                found.setdefault(node.attrs["variable"], []).append(node)
        return found

    def variable_of(self, value: Value) -> Optional[str]:
        """Name of the variable whose current value this is, if any."""
        for name, held in self.variables.items():
            if held is value:
                return name
        return None
