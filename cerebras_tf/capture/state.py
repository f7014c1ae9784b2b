"""Variables during a capture: reads and assignments become data flow."""

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
        stored: Optional[Mapping[str, Variable]] = None,
        in_branch: bool = False,
    ) -> None:
        """An empty state.

        Args:
            step: see the attribute.
            outer: the enclosing state, whose resource tensors are known here too.
            stored: variables whose storage dtype differs from the model's, by name.
            in_branch: the graph is a branch, so gradients flow to its inputs.
        """
        self.step = step
        self._in_branch = in_branch
        self._stored = stored or {}
        self._starts: dict[str, Value] = {}
        self._specs: dict[tuple[Operation, int], Variable] = {} if outer is None else outer._specs
        self._current: dict[str, Value] = {}
        self._assigned: list[str] = []
        self._detached: dict[str, list[Value]] = {}

    def bind_handle(self, handle: Tensor, variable: Variable) -> None:
        """Makes a resource tensor refer to a variable."""
        self._specs[_key(handle)] = variable

    def variable(self, handle: Tensor) -> Variable:
        """The variable a resource tensor refers to."""
        return self._specs[_key(resolve_handle(handle))]

    def knows(self, handle: Tensor) -> bool:
        """Whether the resource tensor refers to a variable of this capture."""
        return _key(resolve_handle(handle)) in self._specs

    def handles(self) -> list[Tensor]:
        """A resource tensor of every variable."""
        found = {spec.name: op.outputs[index] for (op, index), spec in self._specs.items()}
        return list(found.values())

    def initial(self, handle: Tensor) -> Value:
        """Value of the variable when the step begins."""
        return self._initial(self.variable(handle))

    def _initial(self, spec: Variable) -> Value:
        if spec.name not in self.step.variables:
            stored = self._stored.get(spec.name, spec)
            value = self.step.graph.add_input(spec.name, stored.type)
            self.step.variables[spec.name] = value
            self.step.specs[spec.name] = stored
            if stored.type != spec.type:
                b = Builder(self.step.graph)
                self._starts[spec.name] = b.op("cast", value, dtype=spec.type.dtype)
        return self._starts.get(spec.name) or self.step.variables[spec.name]

    def read(self, handle: Tensor) -> Value:
        """Current value of the variable."""
        return self._read(self.variable(handle))

    def _read(self, spec: Variable) -> Value:
        start = self._initial(spec)
        return self._current.get(spec.name, start)

    def read_detached(self, b: Builder, handle: Tensor) -> Value:
        """Current value of the variable, detached from the computation of what was assigned.

        As in TensorFlow, the gradient of a read is a gradient by the variable, not by the values
        that an assigned value was computed from.

        Returns:
            One of `leaves`; in a branch, a value whose derivative by the initial value is 1.
        """
        return self._read_detached(b, self.variable(handle))

    def _read_detached(self, b: Builder, spec: Variable) -> Value:
        value, start = self._read(spec), self._initial(spec)
        if value is start or not value.type.is_floating:
            return value
        detached = b.op("stop_gradient", value)
        if self._in_branch:
            zero = b.constant(0, start.dtype)
            safe = b.op("select", b.op("is_finite", start), start, zero)  # Inf - Inf is NaN
            return b.op("add", detached, b.op("sub", safe, b.op("stop_gradient", safe)))
        self._detached.setdefault(spec.name, []).append(detached)
        return detached

    def read_named_detached(self, b: Builder, name: str) -> Value:
        """`read_detached` for the variable of this name."""
        return self._read_detached(b, self._named(name))

    def outdated(self, read: Value) -> Optional[str]:
        """Name of the variable that this value was read from, if it was assigned since."""
        source = read.node.inputs[0] if read.node is not None and read.node.inputs else read
        for name, current in self._current.items():
            given = [self._initial(self._named(name)), *self._detached.get(name, ())]
            if read in given and current not in (read, source):
                return name
        return None

    def leaves(self, handle: Tensor) -> list[Value]:
        """Values whose gradients add up to the gradient by the variable.

        These are its initial value and the results of `read_detached` so far.
        """
        return [self.initial(handle), *self._detached.get(self.variable(handle).name, ())]

    def assign(self, handle: Tensor, value: Value) -> None:
        """Assigns the variable."""
        name = self.variable(handle).name
        self.initial(handle)
        if name not in self._current:
            self._assigned.append(name)
        self._current[name] = value

    def replace(self, mapping: Mapping[Value, Value]) -> None:
        """Replaces current values that are keys of the mapping."""
        self._current = {name: mapping.get(v, v) for name, v in self._current.items()}

    def updates(self) -> dict[str, Value]:
        """Last values of the variables that were assigned, by name."""
        return {name: self._current[name] for name in self._assigned}

    def _named(self, name: str) -> Variable:
        return next(spec for spec in self._specs.values() if spec.name == name)


def resolve_handle(handle: Tensor) -> Tensor:
    """The original of a resource tensor that a conditional or loop of version 1 has passed on."""
    while handle.op.type in ("Enter", "Switch", "Identity") and handle.op.inputs:
        handle = handle.op.inputs[0]
    return handle


def _key(tensor: Tensor) -> tuple[Operation, int]:
    return tensor.op, tensor.value_index
