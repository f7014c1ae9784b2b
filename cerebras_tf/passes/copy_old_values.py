"""Copies values of variables that are wanted after the step has changed those variables.

Before: variable %w is updated and `return %w` asks for what it was; after: `%old = identity(%w)`
and `return %old`. The same holds for a variable that takes another's old value. It must not copy
what nobody changes, nor look at values used within the step: the schedule keeps their order.
"""

from __future__ import annotations

from cerebras_tf.ir import StepGraph, Value
from cerebras_tf.ops import Builder, viewed


def copy_old_values(step: StepGraph) -> None:
    """Copies in place; updates and results may then be stored in any order."""
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
