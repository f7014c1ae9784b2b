"""Fuses the output projection with softmax cross-entropy, so that logits are not stored.

Before: `%logits = matmul(%h, %w)  %loss, %lse = sparse_softmax_xent(%logits, %labels)`; after:
`%loss, %lse = linear_softmax_xent(%h, %w, %labels)`. A bias added to the product is fused, too. The
pass does not fire where the logits have other readers (accuracy, predictions).
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import rewrite


def fuse_linear_loss(graph: Graph) -> None:
    """Replaces in place, before gradients are expanded."""
    users = graph.users()
    wanted = set(graph.outputs)

    def joined(b: Builder, node: Node) -> Optional[list[Value]]:
        if node.op != "sparse_softmax_xent":
            return None
        product, bias = _product(node, users, wanted)
        if product is None:
            return None
        operands = (*product.inputs, node.inputs[1], *bias)
        turned = product.attrs["transpose_b"]
        return b.multi("linear_softmax_xent", *operands, transpose_weight=turned)

    rewrite(graph, joined, fold=False)


def _product(
    node: Node, users: dict[Value, list[Node]], wanted: set[Value]
) -> tuple[Optional[Node], list[Value]]:
    """The matmul that computes the logits, if nothing else reads them, and an added bias."""
    value = node.inputs[0]
    bias: list[Value] = []
    while True:
        if len(users.get(value, ())) != 1 or value in wanted or value.node is None:
            return None, bias
        made = value.node
        if made.op in ("identity", "cast") and made.inputs[0].type == value.type:
            value = made.inputs[0]
            continue
        if made.op == "add" and not bias:
            value, *bias = sorted(made.inputs, key=lambda operand: -operand.type.rank)
            if bias[0].type.rank == 1 and bias[0].shape == value.shape[1:]:
                continue
        break
    if made.op != "matmul" or made.attrs["transpose_a"]:
        return None, bias
    if any(v.type.rank != 2 or v.dtype != "float32" for v in made.inputs):
        return None, bias
    return made, bias


def drop_weight_gradients(graph: Graph) -> None:
    """Drops gradients of output projections that nothing reads, as of frozen ones.

    Before: `%dh, %dw = linear_softmax_xent_grad(...)` where nothing reads %dw; after: `%dh =
    linear_softmax_xent_grad(...; weight_gradient=False)`.
    """
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)

    def without(b: Builder, node: Node) -> Optional[list[Value]]:
        trained = node.attrs.get("weight_gradient", True)
        if node.op != "linear_softmax_xent_grad" or not trained or node.outputs[1] in read:
            return None
        attrs = {**node.attrs, "weight_gradient": False}
        found = b.multi(node.op, *node.inputs, **attrs)
        return [found[0], node.outputs[1], *found[1:]]

    rewrite(graph, without, fold=False)


def merge_linear_loss(graph: Graph) -> None:
    """Fuses a linear_softmax_xent with its gradient, so that logits are computed once.

    Before: forward node and `linear_softmax_xent_grad`; after: one `linear_softmax_xent_train`. The
    pass does not fire where the cotangent of the loss depends on that loss, also through other
    fused losses.
    """
    forwards: dict[Node, Node] = {}
    # The cotangent of its loss, which a chosen forward node will depend on.
    needed: dict[Node, Value] = {}
    for node in graph.nodes:
        if node.op == "linear_softmax_xent_grad":
            forward = node.inputs[4].node
            if forward is None or forward.op != "linear_softmax_xent":
                continue
            if forward not in needed and not _reaches(forward, node.inputs[0], needed):
                forwards[node], needed[forward] = forward, node.inputs[0]
    losses: dict[Value, Value] = {}

    def joined(b: Builder, node: Node) -> Optional[list[Value]]:
        if node not in forwards:
            return None
        dloss, hidden, weight, labels, _, *bias = node.inputs
        operands = (dloss, hidden, weight, labels, *bias)
        loss, *gradients = b.multi("linear_softmax_xent_train", *operands, **node.attrs)
        losses[forwards[node].outputs[0]] = loss
        return gradients

    rewrite(graph, joined, fold=False)
    # The loss is now computed after some of its readers.
    graph.replace(losses)
    graph.prune()
    graph.sort()


def _reaches(start: Node, value: Value, needed: dict[Node, Value]) -> bool:
    """Whether a value depends on a node, where some nodes will need another value."""
    waiting, seen = [value], set[Node]()
    while waiting:
        node = waiting.pop().node
        if node is start:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(node.inputs)
            if node in needed:
                waiting.append(needed[node])
    return False
