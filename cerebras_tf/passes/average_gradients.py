"""Averages gradients over the wafers of a job, at the boundary between reverse pass and update.

Before: `%g = parameter_gradient(%x)`; after: `%s = mean_start(%x)  %w = mean_wait(%s)
%g = parameter_gradient(%w)`, so that whatever the update does with gradients (clip them by their
norm, look for overflow, add them up) it does with their mean. Rows of a gradient and their numbers
are laid one behind the other instead, the rows divided by the number of wafers: the means of equal
rows are added up where those are. What reads them is written anew for their larger number.

The mean goes into the memory of %x where nobody else reads it and it was computed; else into its
own. This comes behind every pass that joins equal nodes, which would give %x other readers. A
second run does nothing.
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
    """Averages in place.

    Args:
        step: differentiated.
        wafers: how many take part.
    """
    users = step.graph.users()
    wanted = set(step.graph.outputs)
    longer: dict[Value, Value] = {}  # what has rows of all wafers now, and what it was

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
    """The node for operands that have the rows of all wafers, one behind the other.

    Args:
        b: where it is emitted.
        node: reads them already.
        known: for each operand, what it was with one wafer's rows; None where it is as before.
        wafers: how many there are.
        longer: outputs whose types are others now join it.
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
            f"'{node.source}': on {wafers} wafers, {node.op} must take any number of rows of a "
            f"sparse gradient. Received: {', '.join(map(repr, node.inputs))}. Multiply the table "
            "by 1.0 to make its gradient dense."
        ) from error
    longer.update((new, old) for new, old in zip(made, node.outputs) if new.type != old.type)
    return made


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


def drop_wafer_sums(graph: Graph) -> None:
    """Drops in place."""

    def operand(b: Builder, node: Node) -> Optional[list[Value]]:
        return node.inputs if node.op == "wafer_sum" else None

    rewrite(graph, operand, fold=False)
