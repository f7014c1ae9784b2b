"""Finds the variables that are moments of an optimizer: moving averages of functions of gradients.

A table lists the moments of TensorFlow's optimizer operations. In an optimizer written as plain
assignments, a moment is a variable that is not trained, whose new value is `decay * itself + ...`
with a constant decay (perhaps under a condition), and that the new value of a trained variable of
its shape reads. Sums (Adagrad, gradient accumulation), maxima (AMSGrad) and averages that no update
reads (of weights, of batch norm) are not moments. Names do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

import tensorflow as tf

from cerebras_tf.capture.functions import function_bodies, parameters
from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.optimizer import MOMENTS
from cerebras_tf.capture.state import resolve_handle
from cerebras_tf.ir import Variable

_ASSIGNS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_SELECTS = ("Select", "SelectV2")
_COPIES = ("Identity", "Cast")


def find_moments(graph: tf.Graph, handles: Mapping[Operation, Variable]) -> set[str]:
    """Names of the float32 moments among the variables of a graph.

    Args:
        handles: its variables, by the operation that makes their handle.
    """
    known = {op.outputs[0].ref(): variable for op, variable in handles.items()}
    found: set[str] = set()
    for scope in _scopes(_Scope(graph, known, {})):
        found |= scope.moments()
    types = {variable.name: variable.type.dtype for variable in handles.values()}
    return {name for name in found if types[name] == "float32"}


@dataclass(frozen=True)
class _Scope:
    """A graph or function body, with the variables of its handles and the tensors of its inputs."""

    graph: tf.Graph
    handles: Mapping[object, Variable]
    arguments: Mapping[object, Tensor]

    def inside(self, op: Operation, body: tf.Graph) -> _Scope:
        """The scope of a body that an operation here runs."""
        pairs = parameters(op, body)
        found = {inner.ref(): self.variable(outer) for inner, outer in pairs}
        handles = {ref: variable for ref, variable in found.items() if variable is not None}
        arguments = {inner.ref(): outer for inner, outer in pairs}
        return _Scope(body, handles, {**self.arguments, **arguments})

    def variable(self, handle: Tensor) -> Optional[Variable]:
        return self.handles.get(resolve_handle(handle).ref())

    def moments(self) -> set[str]:
        """Names of the moments that are updated here."""
        averages: set[str] = set()
        read: set[str] = set()
        for op in self.graph.get_operations():
            if op.type in MOMENTS:
                names = [argument.name for argument in op.op_def.input_arg]
                moved = [self.variable(op.inputs[names.index(name)]) for name in MOMENTS[op.type]]
                found = {variable.name for variable in moved if variable is not None}
                averages |= found
                read |= found
            elif op.type in _ASSIGNS:
                variable = self.variable(op.inputs[0])
                if variable is not None and variable.trainable:
                    read |= self._reads_of(op.inputs[1], variable)
                elif variable is not None and self._is_moving_average(variable, op):
                    averages.add(variable.name)
        return averages & read

    def _is_moving_average(self, variable: Variable, op: Operation) -> bool:
        """Whether an assignment updates a variable as a moving average."""
        value = self._selected_update(_source(op.inputs[1]), variable)
        if op.type == "AssignAddVariableOp":
            return self._is_step_toward(value, variable, toward=True)
        if op.type == "AssignSubVariableOp":
            return self._is_step_toward(value, variable, toward=False)
        if value.op.type in ("AddV2", "Add"):
            one, other = map(_source, value.op.inputs)
            return (
                self._is_decayed(one, variable)
                or self._is_decayed(other, variable)
                or (
                    self._is_read(one, variable)
                    and self._is_step_toward(other, variable, toward=True)
                )
                or (
                    self._is_read(other, variable)
                    and self._is_step_toward(one, variable, toward=True)
                )
            )
        if value.op.type == "Sub":
            one, other = map(_source, value.op.inputs)
            return self._is_read(one, variable) and self._is_step_toward(
                other, variable, toward=False
            )
        return self._is_decayed(value, variable)  # of a sparse update: gradients are added to rows

    def _selected_update(self, value: Tensor, variable: Variable) -> Tensor:
        """The new value, where a selection chooses between it and the old one."""
        if value.op.type in _SELECTS:
            one, other = map(_source, value.op.inputs[1:])
            if self._is_read(other, variable):
                return one
            if self._is_read(one, variable):
                return other
        return value

    def _is_decayed(self, tensor: Tensor, variable: Variable) -> bool:
        """Whether it is the variable times a constant decay."""
        factors = self._product(tensor)
        return factors is not None and self._is_read(factors[0], variable)

    def _is_step_toward(self, tensor: Tensor, variable: Variable, toward: bool) -> bool:
        """Whether it is a constant times (other - variable), or (variable - other)."""
        factors = self._product(tensor)
        if factors is None or factors[0].op.type != "Sub":
            return False
        return self._is_read(_source(factors[0].op.inputs[1 if toward else 0]), variable)

    def _product(self, tensor: Tensor) -> Optional[tuple[Tensor, float]]:
        """(factor, constant factor between 0 and 1) of a product."""
        if tensor.op.type != "Mul":
            return None
        one, other = map(_source, tensor.op.inputs)
        for factor, constant in ((one, other), (other, one)):
            number = self._constant(constant)
            if number is not None and 0.0 < number < 1.0:
                return factor, number
        return None

    def _constant(self, tensor: Tensor) -> Optional[float]:
        while tensor.ref() in self.arguments:
            tensor = _source(self.arguments[tensor.ref()])
        content = tf.get_static_value(tensor)
        return float(content) if content is not None and content.size == 1 else None

    def _is_read(self, tensor: Tensor, variable: Variable) -> bool:
        return tensor.op.type == "ReadVariableOp" and self.variable(tensor.op.inputs[0]) == variable

    def _reads_of(self, tensor: Tensor, variable: Variable) -> set[str]:
        """Variables of a variable's shape that its new value depends on elementwise."""
        shape = list(variable.type.shape)
        found: set[str] = set()
        seen: set[Operation] = set()
        stack = [tensor]
        while stack:
            tensor = stack.pop()
            if tensor.op in seen or tensor.shape.rank is None or tensor.shape.as_list() != shape:
                continue
            seen.add(tensor.op)
            if tensor.op.type == "ReadVariableOp":
                read = self.variable(tensor.op.inputs[0])
                if read is not None and not read.trainable:
                    found.add(read.name)
            stack.extend(tensor.op.inputs)
        return found


def _scopes(scope: _Scope) -> Iterator[_Scope]:
    """A scope and those of the functions it calls, outermost first."""
    yield scope
    for op in scope.graph.get_operations():
        for body in function_bodies(op):
            yield from _scopes(scope.inside(op, body))


def _source(tensor: Tensor) -> Tensor:
    """The tensor that this one is a copy of."""
    while tensor.op.type in _COPIES:
        tensor = tensor.op.inputs[0]
    return tensor
