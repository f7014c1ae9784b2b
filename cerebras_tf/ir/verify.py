"""Checks that a graph is well formed: order, single assignment, known ops, inferred types."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Optional

from cerebras_tf.errors import GraphError
from cerebras_tf.ir.graph import Graph, Node, Value
from cerebras_tf.ir.types import TensorType

Infer = Callable[[str, Sequence[Value], dict[str, Any]], list[TensorType]]
# Nodes whose types were verified, with everything that they were inferred from.
Inferred = dict[Node, tuple[Any, ...]]


def verify(
    graph: Graph, infer: Optional[Infer] = None, inferred: Optional[Inferred] = None
) -> None:
    """Raises GraphError, with the lines around the fault, where the graph breaks an invariant.

    Args:
        graph: checked together with the graphs in its attributes.
        infer: type inference of one op; if given, stored types must equal inferred ones.
        inferred: results of earlier calls, updated here: unchanged nodes are not inferred again.
    """
    inferred = {} if inferred is None else inferred
    known: set[Value] = set(graph.inputs)
    names: set[str] = {value.name for value in graph.inputs}
    if len(names) != len(graph.inputs):
        raise _fault(graph, None, "input names must be unique")
    for node in graph.nodes:
        for value in node.inputs:
            if value not in known:
                raise _fault(graph, node, f"operand {value!r} must be an earlier output")
        for index, value in enumerate(node.outputs):
            if value.node is not node or value.index != index:
                raise _fault(graph, node, f"output {value!r} must refer to its node")
            if value in known or value.name in names:
                raise _fault(graph, node, f"value {value!r} must be produced once")
            known.add(value)
            names.add(value.name)
        if _is_as_before(node, inferred):
            continue
        if infer is not None:
            _check_types(graph, node, infer)
        inner_graphs = node.subgraphs.values()
        for inner in inner_graphs:
            verify(inner, infer, inferred)
        if infer is not None and not inner_graphs:
            inferred[node] = _premises(node)
    for value in graph.outputs:
        if value not in known:
            raise _fault(graph, None, f"graph output {value!r} must be the output of a node")


def _premises(node: Node) -> tuple[Any, ...]:
    types = [value.type for value in (*node.inputs, *node.outputs)]
    return (node.op, *node.attrs.values(), *node.inputs, *types)


def _is_as_before(node: Node, inferred: Inferred) -> bool:
    """Whether the same objects were verified before; graphs in attributes may change inside."""
    before = inferred.get(node)
    if before is None:
        return False
    now = _premises(node)
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _check_types(graph: Graph, node: Node, infer: Infer) -> None:
    inferred = infer(node.op, node.inputs, node.attrs)
    if len(inferred) != len(node.outputs):
        raise _fault(graph, node, f"{len(inferred)} outputs expected")
    for value, type in zip(node.outputs, inferred):
        if value.type != type:
            raise _fault(graph, node, f"{value!r} must have the inferred type {type}")


def _fault(graph: Graph, node: Optional[Node], rule: str) -> GraphError:
    lines = []
    if node is not None and node in graph.nodes:
        at = graph.nodes.index(node)
        for other in graph.nodes[max(0, at - 2) : at + 2]:
            lines.append(("  > " if other is node else "    ") + repr(other))
    around = "\n" + "\n".join(lines) if lines else ""
    return GraphError(f"graph {graph.name}: {rule}. Received: {node!r}.{around}")
