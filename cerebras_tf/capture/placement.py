"""Decides what runs on the wafer and what stays in the TensorFlow session.

On the wafer: whatever depends on the model's variables and has an IR form, and what it needs of
features. In the session: the input pipeline, metrics, summaries, prints, files. Values cross where
one reads the other. This file deliberately changes no graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from cerebras_tf.capture.functions import (
    CHECKS,
    FUNCTION_ATTRIBUTES,
    body_operations,
    function_bodies,
    holds_checks,
    is_check,
)
from cerebras_tf.capture.order import execution_order
from cerebras_tf.capture.recording import GradientCall
from cerebras_tf.capture.registry import LOWERINGS
from cerebras_tf.capture.source import missing_op_report
from cerebras_tf.capture.state import passed_handle
from cerebras_tf.errors import UnsupportedOpError


class Placement:
    """Where the operations of one graph run.

    Attributes:
        graph: the model's graph.
        owned: operations that make handles of variables the wafer reads or assigns.
        behind: checks, prints and the like that the model runs and that read what a step computes.
    """

    def __init__(
        self,
        graph: tf.Graph,
        model_start: int,
        owned: Iterable[Any],
        global_step: Any,
        gradients: Iterable[GradientCall],
    ) -> None:
        """Prepares a placement.

        Args:
            graph: graph whose model_fn has run.
            model_start: number of operations that existed before model_fn ran.
            owned: operations that make handles of the variables a step reads or assigns.
            global_step: the one of them whose variable stays in the session.
            gradients: recorded gradient calls.
        """
        self.graph = graph
        self.owned = set(owned)
        self._global_step = global_step
        self._reads_step: set[Any] = {global_step}
        self._inputs = set(graph.get_operations()[:model_start])
        self._results = {
            tensor.op
            for call in gradients
            for result in call.results
            for tensor in _tensors(result)
        }
        self._backward = {op for call in gradients for op in call.made} - self._results
        self.behind: list[Any] = []
        self._in_step: set[Any] = set()
        self._seen = 0
        self._depends: set[Any] = set()
        self._host: set[Any] = set()

    def update(self) -> None:
        """Looks at operations added since the last call."""
        operations = self.graph.get_operations()
        fresh = {op: i for i, op in enumerate(operations[self._seen :])}
        self._seen = len(operations)
        # Inputs first: version 1 conditionals add a Switch after the operation that reads it.
        ordered = execution_order(
            fresh, lambda op: [t.op for t in op.inputs if t.op in fresh], fresh
        )
        for op in dict.fromkeys([*ordered, *fresh]):  # those without an order are loops
            self._classify(op)

    def on_wafer(self, op: Any) -> bool:
        """Whether an operation's outputs are computed on the wafer."""
        return op in self._depends and op not in self._host

    def host_readers(self) -> list[tuple[Any, int, Any]]:
        """(operation, input number, tensor) wherever the session reads a value of the wafer."""
        found = []
        for op in self.graph.get_operations():
            if self.on_wafer(op) or op in self._backward or op in self.owned:
                continue
            for index, tensor in enumerate(op.inputs):
                if tensor.dtype != tf.resource and self.on_wafer(tensor.op):
                    found.append((op, index, tensor))
        return found

    def in_step(self, op: Any) -> bool:
        """Whether a step stands for the operation, so that the session must not run it."""
        return op in self._in_step or self.on_wafer(op)

    def is_computed(self, op: Any) -> bool:
        """Whether every step runs the operation."""
        return op in self._in_step

    def is_backward(self, op: Any) -> bool:
        """Whether TensorFlow made the operation for a gradient that is recorded."""
        return op in self._backward

    def boundary(self, capture: Any, roots: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """What the session feeds to a step.

        Args:
            capture: gives the dependencies of operations.
            roots: operations the step computes.

        Returns:
            (tensors fed, host operations that must run beside the step).

        Raises:
            UnsupportedOpError: the roots need wafer values through operations without an IR form.
        """
        fed: dict[tuple[Any, int], Any] = {}
        beside: list[Any] = []
        checks: list[Any] = []
        missing: list[Any] = []
        seen: set[Any] = set()
        stack = list(roots)
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            seen.add(op)
            if is_check(op):
                checks.append(op)
                continue
            if op not in self._depends and holds_checks(op):
                checks.append(op)
            if not self._lowerable(op) and op not in self.owned:
                if op in self._depends:
                    missing.extend(capture.unsupported(op) or [op])
                    stack.extend(tensor.op for tensor in op.inputs if tensor.op in self._depends)
                else:
                    beside.append(op)
                continue
            missing.extend(capture.unsupported(op))
            for other in capture.dependencies(op):
                if self._is_fed(other):
                    for tensor in other.outputs:
                        fed.setdefault((other, tensor.value_index), tensor)
                else:
                    stack.append(other)
            for other in op.control_inputs:
                if is_check(other) or not capture.can_lower(other):
                    checks.append(other)
        if missing:
            position = {op: i for i, op in enumerate(self.graph.get_operations())}
            missing = sorted(dict.fromkeys(missing), key=lambda op: position.get(op, -1))
            raise UnsupportedOpError(missing_op_report(missing))
        self.behind = [op for op in dict.fromkeys(checks) if self._follows(op)]
        beside += [op for op in dict.fromkeys(checks) if op not in self.behind]
        self._in_step.update(seen.difference(beside, self.behind))
        # What the step computes of the global step is read from the step, not computed again.
        self._depends.update(op for op in seen if op in self._reads_step and op not in self.owned)
        used = {(t.op, t.value_index) for op in seen for t in op.inputs}
        return [tensor for key, tensor in fed.items() if key in used], beside

    def _follows(self, check: Any) -> bool:
        """Whether a check or print must wait for a step."""
        makers = [tensor.op for tensor in check.inputs]
        return any(op in self._depends for op in [*makers, *check.control_inputs])

    def _is_fed(self, op: Any) -> bool:
        """Whether the session computes the operation and feeds its outputs."""
        if op in self._depends or op in self.owned or op.type == "Const" or not op.outputs:
            return False
        return op in self._inputs or not self._lowerable(op)

    def _lowerable(self, op: Any) -> bool:
        if op in self._results:
            return True
        if op.type in FUNCTION_ATTRIBUTES:
            return all(
                inner.type in CHECKS or self._lowerable(inner)
                for body in function_bodies(op)
                for inner in body_operations(body)
            )
        if op.type not in LOWERINGS:
            return False
        handles = [passed_handle(t).op for t in op.inputs if t.dtype == tf.resource]
        return all(h in self.owned or h.type == "Placeholder" for h in handles)

    def _classify(self, op: Any) -> None:
        if op in self.owned:
            if op is not self._global_step:
                self._depends.add(op)
            return
        if op in self._inputs:  # the session's own reading of the global step
            return
        makers = [tensor.op for tensor in op.inputs]
        if any(maker in self._reads_step for maker in makers):
            self._reads_step.add(op)
        if any(maker in self._depends for maker in makers):
            self._depends.add(op)
            if op in self._results:
                return
            kept = not self._lowerable(op) or is_check(op)
            if kept or any(maker in self._host for maker in makers):
                self._host.add(op)


def _tensors(result: Any) -> list[Any]:
    if isinstance(result, tf.IndexedSlices):
        return [result.values, result.indices]
    return [] if result is None else [result]
