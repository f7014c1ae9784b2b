"""Stores operands of bfloat16 products in bfloat16.

Before: `%h = mul(%u, %t)  %y = matmul(%h, %w; compute="bfloat16")`, and a later product reads %h,
too; after: `%h = mul(%u, %t)  %r: bfloat16 = cast(%h)  %y = matmul(%r, %w; compute="bfloat16")`,
and the later one reads %r. These products round anyway, so no number changes; a value is rounded
once, and takes half the bytes in the backward pass. An op that can round its result does it itself,
if only products read it. The pass does not fire where other backward nodes read a forward value,
which would be kept twice, nor where the cast would cost what it saves: where it cannot be fused, or
where one product reads the value besides other nodes, unless the value is kept for the backward
pass.
"""

from __future__ import annotations

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import infer, is_view, lookup, viewed
from cerebras_tf.passes.lower_products import ROUNDED


def round_operands(graph: Graph) -> None:
    """Inserts casts in place, after lower_products, in schedule order."""
    chosen = _chosen(graph)
    if not chosen:
        return
    rounded: dict[Value, Value] = {}
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        if _rounds(node):
            node.inputs = [rounded.get(value, value) for value in node.inputs]
        graph.nodes.append(node)
        if node.op == GRADIENT:
            rounded |= {
                out: rounded[value]
                for out, value in zip(node.outputs, node.inputs)
                if value in rounded
            }
        elif is_view(node) and node.inputs[0] in rounded:
            operands = [rounded[node.inputs[0]], *node.inputs[1:]]
            rounded[node.outputs[0]] = _append(graph, node, node.op, operands, node.attrs)
        for value in node.outputs:
            if value in chosen:
                rounded[value] = _rounded(graph, node, value, chosen[value])
    graph.prune()


def _rounded(graph: Graph, node: Node, value: Value, alone: bool) -> Value:
    """A chosen value in bfloat16.

    Args:
        alone: whether only products read it.
    """
    if alone and value.index == 0 and lookup(node.op).rounds:
        node.attrs["dtype"] = ROUNDED
        value.type = value.type.with_dtype(ROUNDED)
        return value
    return _append(graph, node, "cast", [value], {"dtype": ROUNDED})


def _append(
    graph: Graph, node: Node, op: str, operands: list[Value], attrs: dict[str, object]
) -> Value:
    made = graph.make_node(op, operands, dict(attrs), infer(op, operands, attrs), node.source)
    made.layer, made.direction = node.layer, node.direction
    graph.nodes.append(made)
    return made.output


def _rounds(node: Node) -> bool:
    return node.op == "matmul" and node.attrs.get("compute") == ROUNDED


def _chosen(graph: Graph) -> dict[Value, bool]:
    """Values that are rounded, and whether only products read them."""
    products: dict[Value, list[Node]] = {}
    others: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if is_view(node) and len(node.outputs) == 1:
            others_of = node.inputs[1:]  # such as a shape
        else:
            others_of = [] if _rounds(node) else node.inputs
            for value in node.inputs if _rounds(node) else ():
                products.setdefault(viewed(value), []).append(node)
        for value in others_of:
            others.setdefault(viewed(value), []).append(node)
    wanted = {viewed(value) for value in graph.outputs}
    return {
        value: value not in others
        for value, readers in products.items()
        if value not in wanted and _pays(value, readers, others.get(value, []))
    }


def _pays(value: Value, products: list[Node], others: list[Node]) -> bool:
    made = value.node
    if made is None or made.op == "constant" or value.dtype != "float32":
        return False
    if made.direction == "forward":
        if any(node.direction != "forward" for node in others):
            return False
        if any(node.direction != "forward" for node in products):
            return True
    return lookup(made.op).elementwise and (not others or len(products) > 1)
