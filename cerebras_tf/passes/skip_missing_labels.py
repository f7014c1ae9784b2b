"""Lets labels of -1 stand for no label where a weight of 0 proves that nothing depends on them.

Before: `%loss, %lse = sparse_softmax_xent(%logits, %labels)  %y = mul(%loss, %weights)`; after: the
labels are `select(%labels == -1 and %weights == 0, 0, %labels)`, so that the loss of these rows is
finite and is multiplied by 0. Labels of -1 with another weight still raise an error in the kernel.

The pass does not fire where anything but the product reads the loss, where the weights are not one
a row, or where they depend on the loss or on a variable, whose gradient is the loss.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.ops.shape import reshape
from cerebras_tf.passes.rewrite import rewrite


def skip_missing_labels(graph: Graph, variables: Collection[Value] = ()) -> None:
    """Replaces labels in place, before gradients are expanded."""
    users, wanted = graph.users(), set(graph.outputs)
    losses = [node for node in graph.nodes if _index(node) and not _is_done(node)]
    weights = {node: _weights(node, users, wanted, variables) for node in losses}
    if not any(weights.values()):
        return

    def rule(b: Builder, node: Node) -> None:
        rows = weights.get(node)
        if rows is None:
            return
        at = _index(node)
        labels = node.inputs[at]
        none = b.op("equal", labels, b.constant(-1, labels.dtype))
        rows = reshape(b, rows, labels.shape)
        unweighted = b.op("equal", rows, b.constant(0, rows.dtype))
        none = b.op("logical_and", none, unweighted)
        node.inputs[at] = b.op("select", none, b.constant(0, labels.dtype), labels)

    rewrite(graph, rule, fold=False)
    graph.sort()  # weights may be computed after the loss


def _index(node: Node) -> int:
    """Index of the labels among the operands; 0 for other ops."""
    return {"sparse_softmax_xent": 1, "linear_softmax_xent": 2}.get(node.op, 0)


def _is_done(node: Node) -> bool:
    made = node.inputs[_index(node)].node
    condition = made.inputs[0].node if made is not None and made.op == "select" else None
    return condition is not None and condition.op == "logical_and"


def _weights(
    node: Node,
    users: dict[Value, list[Node]],
    wanted: Collection[Value],
    variables: Collection[Value],
) -> Optional[Value]:
    """What the loss of each row is multiplied by, if nothing else reads it."""
    value = node.outputs[0]
    while len(users.get(value, ())) == 1 and value not in wanted:
        (reader,) = users[value]
        if reader.op == "mul":
            first, second = reader.inputs
            other = second if first is value else first
            if other.shape == value.shape:
                return None if _depends(other, {node.outputs[0], *variables}) else other
            if other.type.rank:
                return None
        elif reader.op not in ("identity", "cast", "reshape"):
            return None
        value = reader.output
    return None


def _depends(value: Value, others: Collection[Value]) -> bool:
    """Whether a value is computed from one of others."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if value in others:
            return True
        if value not in seen and value.node is not None:
            seen.add(value)
            waiting += value.node.inputs
    return False
