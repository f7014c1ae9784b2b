"""Averages gradients over the wafers of a job, at the boundary between reverse pass and update.

Before: `%g = parameter_gradient(%x)`; after: `%s = mean_start(%x)  %w = mean_wait(%s)
%g = parameter_gradient(%w)`, so that whatever the update does with gradients (clip them by their
norm, look for overflow, add them up) it does with their mean. Rows of a gradient and their numbers
are laid one behind the other instead, the rows divided by the number of wafers: the means of equal
rows are added up where those are.

The mean goes into the memory of %x where nobody else reads it and it was computed; else into its
own. This comes behind every pass that joins equal nodes, which would give %x other readers. A
second run does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import Builder, is_view
from cerebras_tf.passes.rewrite import rewrite

START = "mean_start"
WAIT = "mean_wait"


def average_gradients(step: StepGraph, wafers: int) -> None:
    """Averages in place.

    Args:
        step: differentiated.
        wafers: how many take part.
    """
    users = step.graph.users()
    wanted = set(step.graph.outputs)

    def rule(b: Builder, node: Node) -> None:
        if node.op != GRADIENT or _is_mean(node.inputs[0]):
            return
        if len(node.inputs) > 1:
            rows, numbers = node.inputs
            scaled = b.op("mul", rows, 1 / wafers)
            node.inputs = [b.op("wafer_concat", x, wafers=wafers) for x in (scaled, numbers)]
            return
        (x,) = node.inputs
        alone = _is_alone(x, users) and x not in wanted
        node.inputs = [b.op(WAIT, b.op(START, x, in_place=alone, root=-1))]

    rewrite(step.graph, rule, fold=False)


def _is_mean(value: Value) -> bool:
    return value.node is not None and value.node.op in (WAIT, "wafer_concat")


def _is_alone(value: Value, users: Mapping[Value, list[Node]]) -> bool:
    """Whether it has memory of its own that one node reads."""
    node: Optional[Node] = value.node
    return (
        node is not None
        and node.op != "constant"
        and not is_view(node)
        and len(users.get(value, ())) == 1
        and value.type.is_bounded
    )
