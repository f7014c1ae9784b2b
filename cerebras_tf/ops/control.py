"""Control ops: conditionals, recorded gradients and functions with gradients of their own.

Their operands include graphs, so gradients of `cond` and `custom_gradient` are written by the
differentiation pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, Node, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.registry import register


def _cond_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """cond(predicate, *operands; then, orelse): outputs of the graph the predicate chooses."""
    then, orelse = attrs["then"], attrs["orelse"]
    for branch in (then, orelse):
        expected = [value.type for value in branch.inputs]
        if [value.type for value in inputs[1:]] != expected:
            raise GraphError(
                f"op cond: operands must fit the branch {branch.name}. "
                f"Received: {list(inputs[1:])}, expected {expected}. Cast or reshape them."
            )
    types = []
    for first, second in zip(then.outputs, orelse.outputs):
        if first.dtype != second.dtype or first.type.rank != second.type.rank:
            raise GraphError(
                "op cond: both branches must return one dtype and rank. "
                f"Received: {first!r} and {second!r}. Cast or reshape one of them."
            )
        dims = tuple(a if a == b else None for a, b in zip(first.shape, second.shape))
        types.append(TensorType(first.dtype, dims))
    return types


def _gradient_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """gradient(*ys, *dys, *xs, *stops; ys, dys, xs): cotangents of the xs.

    `ys` and `xs` are counts; `dys` holds, for every y, whether a cotangent is given (else ones).
    """
    start = attrs["ys"] + sum(attrs["dys"])
    return [value.type for value in inputs[start : start + attrs["xs"]]]


def _custom_gradient_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """custom_gradient(*xs, *captured; xs, backward): the xs unchanged.

    `backward` maps (*captured, *dys) to the cotangents named in attribute `gives`.
    """
    return [value.type for value in inputs[: attrs["xs"]]]


def _parameter_gradient_infer(inputs: Sequence[Value], attrs: dict[str, Any]) -> list[TensorType]:
    """parameter_gradient(x [, numbers]; variable): the operands unchanged.

    Says that x is the gradient of a loss by a variable, or rows of it, `numbers` being theirs. It
    marks where the reverse pass ends, see StepGraph.gradients; no pass removes it.
    """
    return [value.type for value in inputs]


def _parameter_gradient_vjp(
    b: Any, node: Node, dys: list[Optional[Value]]
) -> list[Optional[Value]]:
    return list(dys)


register("cond", _cond_infer, rows=rows.across, structural=True)
register(
    "parameter_gradient",
    _parameter_gradient_infer,
    _parameter_gradient_vjp,
    rows=rows.across,
    view=True,
)
register("gradient", _gradient_infer, rows=rows.across, differentiable=False, structural=True)
register("custom_gradient", _custom_gradient_infer, rows=rows.across, structural=True)


def inline(b: Any, graph: Graph, arguments: Sequence[Value]) -> list[Value]:
    """Emits a graph's nodes at the end of the builder's graph.

    Args:
        b: the builder to emit with.
        graph: what to copy.
        arguments: values that stand for the graph's inputs.

    Returns:
        Values that stand for the graph's outputs.
    """
    mapping = dict(zip(graph.inputs, arguments))
    for node in graph.nodes:
        operands = [mapping[value] for value in node.inputs]
        b.source = node.source or b.source
        copies = b.multi(node.op, *operands, **node.attrs)
        mapping.update(zip(node.outputs, copies))
    return [mapping[value] for value in graph.outputs]
