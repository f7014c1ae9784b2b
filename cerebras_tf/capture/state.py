"""Variables during a capture: state becomes data flow.

The state maps every variable to its current value; assignments replace it, reads return it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.ir import StepGraph, Value, Variable
from cerebras_tf.ops import Builder


class VariableState:
    """Current value of every variable during a capture.

    Attributes:
        step: where variables become graph inputs, at their first use.
    """

    def __init__(
        self,
        step: StepGraph,
        outer: Optional[VariableState] = None,
        resting: Optional[Mapping[str, Variable]] = None,
        in_branch: bool = False,
    ) -> None:
        """An empty state.

        Args:
            step: see the attribute.
            outer: resource tensors known there are known here.
            resting: variables that rest in another dtype than the model has them in, by name.
            in_branch: gradients are taken by what a graph within an operation is given.
        """
        self.step = step
        self._in_branch = in_branch
        self._resting = resting or {}
        self._starts: dict[str, Value] = {}
        self._specs: dict[tuple[Operation, int], Variable] = {} if outer is None else outer._specs
        self._current: dict[str, Value] = {}
        self._assigned: list[str] = []
        self._behind: dict[str, list[Value]] = {}

    def bind_handle(self, handle: Tensor, variable: Variable) -> None:
        """Says that a resource tensor refers to a variable."""
        self._specs[_key(handle)] = variable

    def variable(self, handle: Tensor) -> Variable:
        """The variable a resource tensor refers to."""
        return self._specs[_key(passed_handle(handle))]

    def knows(self, handle: Tensor) -> bool:
        """Whether the resource tensor refers to a variable of this capture."""
        return _key(passed_handle(handle)) in self._specs

    def initial(self, handle: Tensor) -> Value:
        """Value the variable has when the step begins."""
        return self._initial(self.variable(handle))

    def _initial(self, spec: Variable) -> Value:
        if spec.name not in self.step.variables:
            resting = self._resting.get(spec.name, spec)
            value = self.step.graph.add_input(spec.name, resting.type)
            self.step.variables[spec.name] = value
            self.step.specs[spec.name] = resting
            if resting.type != spec.type:
                b = Builder(self.step.graph)
                self._starts[spec.name] = b.op("cast", value, dtype=spec.type.dtype)
        return self._starts.get(spec.name) or self.step.variables[spec.name]

    def read(self, handle: Tensor) -> Value:
        """Value the variable has now."""
        return self._read(self.variable(handle))

    def _read(self, spec: Variable) -> Value:
        start = self._initial(spec)
        return self._current.get(spec.name, start)

    def read_apart(self, b: Builder, handle: Tensor) -> Value:
        """What `read` gives, with no way back to what was assigned: TensorFlow has none either.

        The gradient of a read is one by the variable, whatever was assigned before it.

        Args:
            b: emits what the value takes.
            handle: of the variable.

        Returns:
            The value; one of `leaves`, or in a branch one that depends on the initial value with
            derivative 1.
        """
        return self._read_apart(b, self.variable(handle))

    def _read_apart(self, b: Builder, spec: Variable) -> Value:
        value, start = self._read(spec), self._initial(spec)
        if value is start or not value.type.is_floating:
            return value
        apart = b.op("stop_gradient", value)
        if self._in_branch:
            zero = b.constant(0, start.dtype)
            safe = b.op("select", b.op("is_finite", start), start, zero)  # Inf - Inf is NaN
            return b.op("add", apart, b.op("sub", safe, b.op("stop_gradient", safe)))
        self._behind.setdefault(spec.name, []).append(apart)
        return apart

    def read_named_apart(self, b: Builder, name: str) -> Value:
        """What `read_apart` gives, for the variable of this name."""
        return self._read_apart(b, self._named(name))

    def outdated(self, read: Value) -> Optional[str]:
        """Name of the variable that `read_apart` gave this for and that was assigned since."""
        source = read.node.inputs[0] if read.node is not None and read.node.inputs else read
        for name, current in self._current.items():
            given = [self._initial(self._named(name)), *self._behind.get(name, ())]
            if read in given and current not in (read, source):
                return name
        return None

    def leaves(self, handle: Tensor) -> list[Value]:
        """What a gradient by the variable adds up over.

        Args:
            handle: of the variable.

        Returns:
            Its initial value, and what `read_apart` gave so far.
        """
        return [self.initial(handle), *self._behind.get(self.variable(handle).name, ())]

    def assign(self, handle: Tensor, value: Value) -> None:
        """The variable has this value from here on."""
        name = self.variable(handle).name
        self.initial(handle)
        if name not in self._current:
            self._assigned.append(name)
        self._current[name] = value

    def replace(self, mapping: Mapping[Value, Value]) -> None:
        """Variables whose value is a key have its value from here on."""
        self._current = {name: mapping.get(v, v) for name, v in self._current.items()}

    def updates(self) -> dict[str, Value]:
        """Variables that were assigned, with their last values."""
        return {name: self._current[name] for name in self._assigned}

    def _named(self, name: str) -> Variable:
        return next(spec for spec in self._specs.values() if spec.name == name)


def passed_handle(handle: Tensor) -> Tensor:
    """The resource tensor that a conditional of version 1 passes on under another name."""
    while handle.op.type in ("Switch", "Identity") and handle.op.inputs:
        handle = handle.op.inputs[0]
    return handle


def _key(tensor: Tensor) -> tuple[Operation, int]:
    return tensor.op, tensor.value_index
