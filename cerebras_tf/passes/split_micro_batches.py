"""Turns a step into the step of one micro-batch: gradients are accumulated.

Before: `%g = parameter_gradient(%x)  %w' = ... %g ...`. After, in the last of N micro-batches:
`%s = add(%sum, mul(%x, 1/N))  %g = parameter_gradient(%s)  %w' = ... %g ...`, so that the update
reads the mean. Earlier micro-batches update only the sums, `w/sum_over_micro_batches`. Sums over
wafers are sums over micro-batches, too: their operands are computed for all micro-batches first,
and the sum is fed to each as a feature.

The pass runs on the captured graph, before all others. passes/batch_facts.py proves that
micro-batches compute the step of the whole batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Optional

from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, Node, StepGraph, TensorType, Value, Variable
from cerebras_tf.ir.program import COMMON_RANDOM_STEP, RANDOM_STEP
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import Builder
from cerebras_tf.passes.batch_facts import WAFER_SUM
from cerebras_tf.passes.rewrite import rewrite

# Kinds of steps. COUNTS computes the operands of sums over wafers; VALUES updates nothing.
COUNTS, FIRST, MIDDLE, LAST, VALUES = "counts", "first", "middle", "last", "values"
# The result of the batch: the mean over micro-batches, exact or as an approximation, the sum over
# them, the value of the last one, or unknown.
MEAN, ABOUT_MEAN, TOTAL, OF_LAST = "mean", "about the mean", "total", "of the last"
UNKNOWN = "unknown"
SUM = "sum_over_micro_batches"
# What a value depends on.
_BATCH, _STATE, _DRAWN, _SHARED = "the batch", "variables", "random numbers", "sums over wafers"
_INNER, _MEAN_GRADIENT = "gradients", "mean gradients"
# The op by which TensorFlow converts a sparse gradient to a dense one.
_DENSE = "unsorted_segment_sum"


def split_micro_batches(
    step: StepGraph, kind: str, count: int, given: Collection[str], whole: bool = True
) -> tuple[dict[str, str], dict[str, TensorType]]:
    """Changes the step in place.

    Args:
        kind: COUNTS, FIRST, MIDDLE, LAST or VALUES.
        given: names of the features that hold rows of the batch.
        whole: whether micro-batches are parts of one batch; else each is a batch with its own loss,
            and the step is that of their mean.

    Returns:
        For every result MEAN, OF_LAST or UNKNOWN, and the types of the sums over wafers, by name.

    Raises:
        UnsupportedOpError: micro-batches would not compute the step of the whole batch.
    """
    depends = _dependences(step, given)
    sums = _wafer_sums(step.graph, depends) if whole else []
    sources = [node.source for node in sums]
    named = {
        node: f"{WAFER_SUM}/{node.source}/{sources[:index].count(node.source)}"
        for index, node in enumerate(sums)
    }
    types = {name: node.output.type for node, name in named.items()}
    if kind == COUNTS:
        step.updates = {}
        step.results = {name: node.inputs[0] for node, name in named.items()}
        step.graph.prune()
        return {}, types
    combined = {name: _combination(value, depends) for name, value in step.results.items()}
    for name, value in step.updates.items():
        if depends[value] & {_BATCH, _INNER}:
            raise UnsupportedOpError(
                "micro-batches: updates must depend on the batch through gradients only. "
                f"Received: '{name}', which reads the batch itself. Train with one batch per step "
                "and without micro_batches."
            )
    totals = _accumulate(step, kind, count)

    def feature(b: Builder, node: Node) -> Optional[list[Value]]:
        name = named.get(node)
        if name is None:
            return None
        step.features[name] = step.graph.add_input(name, node.output.type)
        return [step.features[name]]

    rewrite(step.graph, feature, fold=False)
    if kind in (FIRST, MIDDLE):
        step.updates = totals
        step.blank = set(totals if kind == FIRST else ())
        step.results = {n: v for n, v in step.results.items() if combined[n] == MEAN}
        step.graph.prune()
    return combined, types


def _dependences(step: StepGraph, given: Collection[str]) -> dict[Value, frozenset[str]]:
    """What every value depends on; after a gradient, only the gradient counts."""
    found: dict[Value, frozenset[str]] = {}
    for name, value in step.features.items():
        drawn = name.split("/")[0] in (RANDOM_STEP, COMMON_RANDOM_STEP) or name in step.draws
        found[value] = frozenset([_BATCH] if name in given else [_DRAWN] if drawn else [])
    for value in step.variables.values():
        found[value] = frozenset([_STATE])
    own = {"gradient": _INNER, GRADIENT: _MEAN_GRADIENT, WAFER_SUM: _SHARED}
    for node in step.graph.nodes:
        if node.op in own:
            depends = frozenset([own[node.op]])
        else:
            depends = frozenset().union(*(found.get(value, frozenset()) for value in node.inputs))
        found.update((value, depends) for value in node.outputs)
    return found


def _wafer_sums(graph: Graph, depends: Mapping[Value, frozenset[str]]) -> list[Node]:
    """The sums over wafers, which must be known before micro-batches run."""
    found = []
    for node in graph.nodes:
        if node.op == WAFER_SUM:
            others = depends[node.inputs[0]] - {_BATCH}
            if others:
                raise UnsupportedOpError(
                    f"'{node.source}': with micro_batches, the operand of cross_wafer_sum must "
                    f"depend on the batch only. Received: an operand that depends on "
                    f"{' and '.join(sorted(others))}. Multiply a sum of losses by "
                    "cross_wafer_sum(1.0) / cross_wafer_sum(count), where count is its number of "
                    "terms, or remove micro_batches."
                )
            found.append(node)
        elif any(_holds_sums(inner) for inner in node.subgraphs.values()):
            raise UnsupportedOpError(
                f"'{node.source}': with micro_batches, cross_wafer_sum must be outside of "
                "conditionals and loops. Received: one inside. Remove micro_batches."
            )
    return found


def _holds_sums(graph: Graph) -> bool:
    return any(
        node.op == WAFER_SUM or any(map(_holds_sums, node.subgraphs.values()))
        for node in graph.nodes
    )


def _combination(value: Value, depends: Mapping[Value, frozenset[str]]) -> str:
    """How the result of the batch follows from those of micro-batches."""
    of_batch = depends[value] & {_BATCH, _INNER}
    if not of_batch:
        return OF_LAST
    known = of_batch == {_BATCH} and _MEAN_GRADIENT not in depends[value]
    return MEAN if known and value.shape == () and value.dtype == "float32" else UNKNOWN


def _accumulate(step: StepGraph, kind: str, count: int) -> dict[str, Value]:
    """Inserts the sums between gradients and update; returns them by name."""
    targets = {} if kind == VALUES else _dense_gradients(step)
    rows = step.gradients
    totals: dict[str, Value] = {}

    def rule(b: Builder, node: Node) -> Optional[list[Value]]:
        variable = targets.get(node)
        if variable is None:
            return None
        value = node.inputs[0]
        if node.op != GRADIENT:  # the conversion of a sparse gradient
            raw = {v: x for n in rows[variable] for v, x in zip(n.outputs, n.inputs)}
            value = b.op(node.op, *(raw.get(x, x) for x in node.inputs), **node.attrs)
        name = f"{variable}/{SUM}"
        kept = step.variables[name] = step.graph.add_input(name, value.type)
        step.specs[name] = Variable(name, value.type)
        total = b.op("mul", value, 1 / count)
        totals[name] = total if kind == FIRST else b.op("add", kept, total)
        return b.multi(GRADIENT, totals[name], variable=variable)

    rewrite(step.graph, rule, fold=False)
    return totals


def _dense_gradients(step: StepGraph) -> dict[Node, str]:
    """The nodes that compute gradients as dense arrays, with the names of their variables."""
    users = step.graph.users()
    found: dict[Node, str] = {}
    for name, (node, *others) in step.gradients.items():
        if len(node.outputs) > 1:
            readers = {reader for value in node.outputs for reader in users.get(value, ())}
            node = next(iter(readers)) if len(readers) == 1 else node
        dense = len(node.outputs) == 1 and node.op in (GRADIENT, _DENSE)
        if others or not dense or node.output.dtype != "float32" or not node.output.type.is_static:
            raise UnsupportedOpError(
                "micro-batches: a variable must have one dense float32 gradient. Received: for "
                f"'{name}' {', '.join(map(repr, node.outputs))}{' and more' if others else ''}. "
                "Multiply a table by 1.0 to make its gradient dense, or train with one batch per "
                "step and without micro_batches."
            )
        found[node] = name
    return found
