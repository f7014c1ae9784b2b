"""Copies old values of variables that are returned after the step has updated those variables.

Before: variable %w is updated and `return %w` returns its old value; after: `%old = identity(%w)`
and `return %old`. The same holds for a variable that is assigned another's old value. Values that
only the step reads are not copied: the schedule keeps their order.
"""

from __future__ import annotations

from cerebras_tf.ir import StepGraph, Value
from cerebras_tf.ops import Builder, viewed


def copy_old_values(step: StepGraph) -> None:
    """Copies in place; updates may then be stored in any order."""
    current = step.variables
    changed = {current[name] for name, new in step.updates.items() if new is not current[name]}
    b = Builder(step.graph)
    copies: dict[Value, Value] = {}

    def kept(value: Value) -> Value:
        if viewed(value) not in changed:
            return value
        if value not in copies:
            copies[value] = b.op("identity", value)
        return copies[value]

    for name, value in step.updates.items():
        if value is not current[name]:
            step.updates[name] = kept(value)
    for name, value in step.results.items():
        step.results[name] = kept(value)
