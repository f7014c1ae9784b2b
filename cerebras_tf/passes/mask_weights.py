"""Keeps pruned weights at zero, and removes them from gradients.

Before: `%g = parameter_gradient(%x)`, and %w' is the new value of the variable %w; after:
`%m = masked_like(%w, %x)  %g = parameter_gradient(%m)`, and the new value is
`masked_like(%w, %w')`, so that norms, moments and weights are those of a model without the pruned
entries. Sparse gradients are unchanged.

The pass runs after differentiation, as the op has no gradient. A second run does nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import rewrite

MASKED = "masked_like"


def mask_weights(step: StepGraph, names: Collection[str]) -> None:
    """Masks variables by name in place; the step is differentiated."""
    weights = {name: step.variables[name] for name in names if name in step.variables}

    def rule(b: Builder, node: Node) -> None:
        if node.op != GRADIENT or len(node.inputs) > 1:
            return
        weight, (x,) = weights.get(node.attrs["variable"]), node.inputs
        if weight is not None and not _is_masked(x):
            if x.node is not None:
                b.layer, b.direction = x.node.layer, x.node.direction
            node.inputs = [_masked(b, weight, x)]

    rewrite(step.graph, rule, fold=False)
    b = Builder(step.graph)
    for name, weight in weights.items():
        new = step.updates.get(name)
        if new is not None and new is not weight and not _is_masked(new):
            step.updates[name] = _masked(b, weight, new)


def _masked(b: Builder, weight: Value, x: Value) -> Value:
    if weight.dtype != x.dtype:
        weight = b.op("cast", weight, dtype=x.dtype)
    return b.op(MASKED, weight, x)


def _is_masked(value: Value) -> bool:
    return value.node is not None and value.node.op == MASKED
