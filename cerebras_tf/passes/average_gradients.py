"""Averages gradients over wafers, between reverse pass and update.

Before: `%g = parameter_gradient(%x)`; after: `%s = mean_start(%x)  %w = mean_wait(%s)
%g = parameter_gradient(%w)`, so that the update sees the mean, whatever it does (clip by norm,
detect overflow). Rows of a sparse gradient and their indices are concatenated instead, the rows
divided by the number of wafers; nodes that read them are emitted again for the larger sizes.

The mean is written over %x where nothing else reads %x. The pass runs after every pass that merges
equal nodes, which would give %x other readers. A second run does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Graph, Node, StepGraph, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import Builder, is_view
from cerebras_tf.passes.rewrite import rewrite

START = "mean_start"
WAIT = "mean_wait"


def average_gradients(step: StepGraph, wafers: int) -> None:
    """Averages in place; the step is differentiated."""
    users = step.graph.users()
    wanted = set(step.graph.outputs)
    longer: dict[Value, Value] = {}  # values with rows of all wafers -> with one wafer's

    def rule(b: Builder, node: Node) -> Optional[list[Value]]:
        if node.op != GRADIENT:
            known = [longer.get(value) for value in node.inputs]
            return _of_more_rows(b, node, known, wafers, longer) if any(known) else None
        if _is_mean(node.inputs[0]):
            return None
        if len(node.inputs) > 1:
            rows, numbers = node.inputs
            scaled = b.op("mul", rows, 1 / wafers)
            parts = [b.op("wafer_concat", x, wafers=wafers) for x in (scaled, numbers)]
            made = b.multi(GRADIENT, *parts, **node.attrs)
            longer.update(zip(made, node.outputs))
            return made
        (x,) = node.inputs
        alone = _is_alone(x, users) and x not in wanted
        node.inputs = [b.op(WAIT, b.op(START, x, in_place=alone, root=-1))]
        return None

    rewrite(step.graph, rule, fold=False)


def _of_more_rows(
    b: Builder,
    node: Node,
    known: Sequence[Optional[Value]],
    wafers: int,
    longer: dict[Value, Value],
) -> list[Value]:
    """Emits a node again for operands that have the rows of all wafers.

    Args:
        node: already reads the longer operands.
        known: for each operand, the value with one wafer's rows; None if it is unchanged.
        longer: outputs that are longer, too, are added.
    """
    firsts = [old.shape[0] for old in known if old is not None and old.shape]
    attrs = {
        key: (held[0] * wafers, *held[1:])
        if key in ("shape", "sizes") and isinstance(held, tuple) and held[:1] in zip(firsts)
        else held
        for key, held in node.attrs.items()
    }
    try:
        made = b.multi(node.op, *node.inputs, **attrs)
    except GraphError as error:
        raise UnsupportedOpError(
            f"'{node.source}': on {wafers} wafers, {node.op} must accept any number of rows of a "
            f"sparse gradient. Received: {', '.join(map(repr, node.inputs))}. Multiply the table "
            "by 1.0 to make its gradient dense."
        ) from error
    longer.update((new, old) for new, old in zip(made, node.outputs) if new.type != old.type)
    return made


def _is_mean(value: Value) -> bool:
    return value.node is not None and value.node.op in (WAIT, "wafer_concat")


def _is_alone(value: Value, users: Mapping[Value, list[Node]]) -> bool:
    """Whether it is computed, has its own memory, and one reader."""
    node: Optional[Node] = value.node
    return (
        node is not None
        and node.op != "constant"
        and not is_view(node)
        and len(users.get(value, ())) == 1
        and value.type.is_bounded
    )


def drop_wafer_sums(graph: Graph) -> None:
    """Removes sums over wafers, which are the identity on one wafer; before pattern passes."""

    def operand(b: Builder, node: Node) -> Optional[list[Value]]:
        return node.inputs if node.op == "wafer_sum" else None

    rewrite(graph, operand, fold=False)
