"""One training, evaluation or prediction step as a graph with named parts.

A StepGraph ties names users know (features, variables, tensors) to values of one graph. It
deliberately holds no arrays: who owns the weights is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from cerebras_tf.ir.graph import Graph, Value
from cerebras_tf.ir.types import TensorType


@dataclass(frozen=True)
class Variable:
    """A variable of the model: name as in checkpoints, type, and whether it is trained."""

    name: str
    type: TensorType
    trainable: bool = False


@dataclass
class StepGraph:
    """A step: graph plus the meaning of its inputs and outputs.

    Attributes:
        graph: inputs are the features, then the variables; outputs the updates, then the results.
        features: inputs given anew at every step, by name.
        variables: current values of variables, by name.
        specs: what each of the variables is, by name.
        updates: values that variables have after the step, by variable name.
        results: values wanted from the step, by name.
    """

    graph: Graph
    features: dict[str, Value] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    specs: dict[str, Variable] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    results: dict[str, Value] = field(default_factory=dict)

    def set_outputs(self) -> None:
        """Makes the graph's outputs the updates, then the results."""
        self.graph.outputs = [*self.updates.values(), *self.results.values()]

    def reread_outputs(self) -> None:
        """Takes updates and results anew from the graph's outputs, after a pass replaced some."""
        names = [*self.updates, *self.results]
        values = dict(enumerate(self.graph.outputs))
        self.updates = {name: values[i] for i, name in enumerate(names[: len(self.updates)])}
        self.results = {
            name: values[i + len(self.updates)] for i, name in enumerate(names[len(self.updates) :])
        }

    def variable_of(self, value: Value) -> Optional[str]:
        """Name of the variable whose current value this is, if any."""
        for name, held in self.variables.items():
            if held is value:
                return name
        return None
