"""One training, evaluation or prediction step as a graph with named inputs and outputs.

A StepGraph maps the user's names of features, variables and tensors to values of one graph. Updates
and results are names for the graph's outputs.
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
# The op on every gradient of a variable, where the reverse pass ends and the update begins.
GRADIENT = "parameter_gradient"


@dataclass(frozen=True)
class Variable:
    """A variable of the model: name as in checkpoints, type, and whether it is trained."""

    name: str
    type: TensorType
    trainable: bool = False


@dataclass(frozen=True)
class Draw:
    """A random op whose invocations differ in size; what it reads is a feature, int64 [3].

    The feature holds key, stream and how many numbers earlier invocations have drawn.

    Attributes:
        key: of the Philox generator; a front end derives it from the model's seed.
        stream: upper half of the generator's first counter; a front end numbers its ops so.
        size: how many numbers an invocation draws.
    """

    key: int
    stream: int
    size: Size


class Outputs(MutableMapping[str, Value]):
    """The outputs of one kind by name: a view of the graph's outputs."""

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
        features: inputs that are fed at every step, by name.
        variables: current values of variables, by name.
        specs: types of the variables, by name.
        labels: for every output of the graph, its kind and name, with its position.
        draws: random ops whose invocations differ in size, by the feature that holds their seeds.
        blank: names of variables that have no value before the step.
        packing: how real tokens are found; None if padding is not removed.
        padding_kept: why padding could not be removed; "" otherwise.
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

    @property
    def updates(self) -> MutableMapping[str, Value]:
        """New values of variables, by variable name."""
        return Outputs(self, UPDATE)

    @updates.setter
    def updates(self, values: Mapping[str, Value]) -> None:
        self._set(self.updates, values)

    @property
    def results(self) -> MutableMapping[str, Value]:
        """Values that the step returns, by name."""
        return Outputs(self, RESULT)

    @results.setter
    def results(self, values: Mapping[str, Value]) -> None:
        self._set(self.results, values)

    @staticmethod
    def _set(outputs: MutableMapping[str, Value], values: Mapping[str, Value]) -> None:
        values = dict(values)  # may be a view of the same outputs
        for name in [name for name in outputs if name not in values]:
            del outputs[name]
        outputs.update(values)

    @property
    def gradients(self) -> dict[str, list[Node]]:
        """By variable, the `parameter_gradient` nodes, one for each loss.

        A node's outputs are what the update reads: the gradient, or rows of it and their indices.
        What passes insert between a node and its operands (spilling, a mean over wafers, a sum over
        micro-batches) applies to any update.
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
