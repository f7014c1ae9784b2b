"""Recomputes elementwise forward values in the backward pass, before fusion.

Before: `%t = tanh(%u)` of the forward pass is read by backward nodes; after: backward nodes read a
copy of `%t = tanh(%u)` computed from values that are kept anyway (products, norms, layer inputs).
Memory traffic costs more than elementwise arithmetic. Random ops are not copied, nor values that
cross layers.
"""

from __future__ import annotations

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder, draws, lookup
from cerebras_tf.passes.rewrite import rewrite

# Longer chains of copies than this cost more than reading what they save.
_LONGEST = 16


def recompute_elementwise(graph: Graph) -> None:
    """Inserts copies in place; nodes have layers and directions."""
    kept = _kept(graph)
    copies: dict[tuple[Value, int], Value] = {}

    def copied(b: Builder, node: Node) -> None:
        if node.direction == "backward":
            node.inputs = [_again(b, value, node.layer, kept, copies) for value in node.inputs]

    rewrite(graph, copied, fold=False)


def _kept(graph: Graph) -> set[Value]:
    """Forward values that are stored anyway: read by nodes that cannot be fused with them."""
    kept = set(graph.outputs)
    for node in graph.nodes:
        for value in node.inputs:
            made = value.node
            if made is None or made.direction != "forward":
                kept.add(value)
            elif node.direction == "forward":
                same = made.layer == node.layer and _cheap(node) and _cheap(made)
                if not same or node.outputs[0].shape != value.shape:
                    kept.add(value)
    return kept


def _cheap(node: Node) -> bool:
    return lookup(node.op).elementwise


def _again(
    b: Builder, value: Value, layer: int, kept: set[Value], copies: dict[tuple[Value, int], Value]
) -> Value:
    """The value, or its copy in the backward pass of the layer."""
    if value in kept or not _can_copy(value, kept, 0):
        return value
    key = (value, layer)
    if key not in copies:
        made = value.node
        assert made is not None
        operands = [_again(b, operand, layer, kept, copies) for operand in made.inputs]
        b.source = made.source
        copies[key] = b.op(made.op, *operands, **made.attrs)
    return copies[key]


def _is_noise(value: Value) -> bool:
    """Whether a value is drawn from step and seeds only."""
    made = value.node
    return made is not None and draws(made) and len(made.inputs) == 2


def _can_copy(value: Value, kept: set[Value], depth: int) -> bool:
    made = value.node
    if made is None or made.direction != "forward" or made.op == "constant":
        return False
    if not _cheap(made) or value.type.rank == 0 or depth > _LONGEST:
        return False
    if any(_is_noise(operand) for operand in made.inputs):
        return False  # a mask of one byte is kept instead
    return all(
        operand in kept
        or operand.node is None
        or operand.constant is not None
        or operand.node.direction != "forward"
        or _can_copy(operand, kept, depth + 1)
        for operand in made.inputs
    )
