"""Removes nodes without effect, and folds constants.

Before: `%b = identity(%a)  %c = add(%b, %zero)`; after: uses of %c are uses of %a. `identity`,
`stop_gradient` and `custom_gradient` are kept while `gradient` nodes remain, as are values that a
`gradient` node reads.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from cerebras_tf.ir import Array, Graph, Node, Value
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, can_fold, lookup
from cerebras_tf.passes.rewrite import rewrite

# The largest constant in bytes that is folded; larger ones are computed in every step.
_FOLD_BYTES = 1 << 26


def simplify(graph: Graph, differentiated: bool = False) -> None:
    """Simplifies in place until nothing changes, also in regions.

    Args:
        graph: any graph.
        differentiated: whether `gradient` nodes of an enclosing graph may remain.
    """
    graph.prune()
    has_gradients = differentiated or any(node.op == "gradient" for node in graph.nodes)
    while _sweep(graph, has_gradients):
        has_gradients = differentiated or any(node.op == "gradient" for node in graph.nodes)
    for node in graph.nodes:
        for inner in node.subgraphs.values():
            simplify(inner, has_gradients)


def _sweep(graph: Graph, has_gradients: bool) -> bool:
    read = {value for node in graph.nodes if node.op == "gradient" for value in node.inputs}

    def simpler(b: Builder, node: Node) -> Optional[list[Value]]:
        same = None if node.outputs[0] in read else _same(node, has_gradients)
        if same is not None:
            return [same]
        if node.op == "custom_gradient" and not has_gradients:
            return node.inputs[: len(node.outputs)]
        better = _fold(b, node)
        if better is None and not any(value in read for value in node.inputs):
            better = _shorter(b, node)
        if better is None:
            return None
        if node.outputs[0] in read:
            read.add(better)
        return [better]

    return rewrite(graph, simpler)


def _same(node: Node, has_gradients: bool) -> Optional[Value]:
    """The operand that the node returns unchanged, or None."""
    op = node.op
    if op in ("identity", "stop_gradient"):
        return None if has_gradients else node.inputs[0]
    if len(node.outputs) != 1 or not node.inputs:
        return None
    x, y = node.inputs[0], node.output
    if op in ("cast", "reshape", "broadcast_to") and x.type == y.type:
        return x
    if op == "transpose" and tuple(node.attrs["permutation"]) == tuple(range(x.type.rank)):
        return x
    if op == "slice" and x.type == y.type and x.type.is_bounded:
        return x if all(step == 1 for step in node.attrs["strides"]) else None
    if op == "concat":
        filled = _not_empty(node)
        return filled[0] if len(filled) == 1 and filled[0].type == y.type else None
    if len(node.inputs) == 2:
        other = node.inputs[1]
        if op in ("add", "sub") and _is(other, 0) and x.type == y.type:
            return x
        if op in ("mul", "div") and _is(other, 1) and x.type == y.type:
            return x
        if op == "add" and _is(x, 0) and other.type == y.type:
            return other
        if op == "mul" and _is(x, 1) and other.type == y.type:
            return other
    return None


def _not_empty(concat: Node) -> list[Value]:
    return [value for value in concat.inputs if value.shape[concat.attrs["axis"]] != 0]


def _is(value: Value, number: float) -> bool:
    """Whether a value is constant and all its elements equal `number`."""
    node = value.node
    if node is not None and node.op == "broadcast_to":
        return _is(node.inputs[0], number)
    constant = value.constant
    if constant is None or not constant.size or constant.flat[0] != number:
        return False
    return bool(np.all(constant == number))


def _fold(b: Builder, node: Node) -> Optional[Value]:
    if not node.inputs or len(node.outputs) != 1 or not can_fold(node.op, node.attrs):
        return None
    arrays = [_content(value, node) for value in node.inputs]
    known = [array for array in arrays if array is not None]
    type = node.output.type
    if len(known) != len(arrays) or not type.is_static or type.bytes > _FOLD_BYTES:
        return None
    if node.op == "broadcast_to":  # readers broadcast the small operand
        return None
    (result,) = evaluate(node.op, known, node.attrs)
    return b.constant(result, type.dtype)


def _content(value: Value, user: Node) -> Optional[Array]:
    """The array of a constant; also of a broadcast one if its user cannot broadcast it."""
    made = value.node
    if made is None or made.op != "broadcast_to" or lookup(user.op).elementwise:
        return value.constant
    inner = made.inputs[0].constant
    if inner is None or not value.type.is_static or value.type.bytes > _FOLD_BYTES:
        return None
    content: Array = evaluate("broadcast_to", [inner], made.attrs)[0]
    return content


def _shorter(b: Builder, node: Node) -> Optional[Value]:
    """An equal value that is cheaper, or None."""
    if node.op == "concat" and 0 < len(_not_empty(node)) < len(node.inputs):
        return b.op("concat", *_not_empty(node), axis=node.attrs["axis"])
    if node.op == "matmul" and node.output.type.is_static:
        inner = node.inputs[0].shape[-2 if node.attrs.get("transpose_a") else -1]
        if inner == 0:  # as of a cache without a token
            zero = b.constant(np.zeros((), node.output.type.numpy_dtype), node.output.dtype)
            return b.op("broadcast_to", zero, shape=node.output.shape)
    if not node.inputs or node.inputs[0].node is None:
        return _drop_broadcast(b, node)
    below = node.inputs[0].node
    if node.op == "reshape" and below.op == "reshape":
        return b.op("reshape", below.inputs[0], shape=node.attrs["shape"])
    if node.op == "transpose" and below.op == "transpose":
        first, second = below.attrs["permutation"], node.attrs["permutation"]
        return b.op("transpose", below.inputs[0], permutation=tuple(first[axis] for axis in second))
    if node.op == "neg" and below.op == "neg":
        return below.inputs[0]
    return _drop_broadcast(b, node)


def _drop_broadcast(b: Builder, node: Node) -> Optional[Value]:
    """The node without explicit broadcasts of scalar operands, if its op broadcasts; or None."""
    if not lookup(node.op).broadcasts:
        return None
    operands = [
        value.node.inputs[0]
        if value.node is not None
        and value.node.op == "broadcast_to"
        and value.node.inputs[0].type.rank == 0
        else value
        for value in node.inputs
    ]
    if operands == node.inputs:
        return None
    shapes = [value.shape for value in operands]
    if node.output.shape not in shapes:
        return None
    return b.op(node.op, *operands, **node.attrs)
