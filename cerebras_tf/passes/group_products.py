"""Groups matrix products in bfloat16, so that shared operands are packed once.

Before: `%q = matmul(%x, %u)  %k = matmul(%x, %v)`; after: `%q, %k = grouped_matmul(%x, %u, %v;
lefts=1)`; likewise products with one right operand. Before: `%a = matmul(%p, %u)  %b = matmul(%q,
%v)  %y = add(%a, %b)`; after: `%y = grouped_matmul(%p, %q, %u, %v; lefts=2, summed=True)`, which
adds in the order of the products. The pass does not fire for float32 products, for batched ones,
for products of different layers or directions, or where one depends on another; nor for a sum whose
parts have other readers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import infer
from cerebras_tf.passes.lower_products import ROUNDED

GROUPED = "grouped_matmul"


def group_products(graph: Graph) -> None:
    """Groups in place, in schedule order, nodes that have layers and directions."""
    if any(map(_is_product, graph.nodes)):
        _rewrite(graph, _sums(graph))
        _rewrite(graph, _groups(graph))


class _Group(NamedTuple):
    """Nodes that one node replaces.

    Attributes:
        products: in order.
        others: additions, the last of which is the products' sum; without any, the products share
            their operand `side`.
    """

    products: list[Node]
    others: list[Node]
    side: int = 0


def _is_product(node: Node) -> bool:
    """Whether a node may be grouped: the right operand is a matrix, and so is the left one if it is
    transposed."""
    if node.op != "matmul" or node.attrs.get("compute") != ROUNDED:
        return False
    a, b = node.inputs
    return b.type.rank == 2 and (a.type.rank == 2 or not node.attrs.get("transpose_a"))


def _kind(node: Node) -> tuple[Any, ...]:
    """What is equal for the members of a group."""
    transposed = (bool(node.attrs.get(f"transpose_{side}")) for side in "ab")
    return node.layer, node.direction, *transposed


def _levels(graph: Graph) -> dict[Node, int]:
    """The most products before a node on any path: nodes of one level do not depend on each other,
    and groups within levels form no cycle."""
    level: dict[Node, int] = {}
    for node in graph.nodes:
        makers = [value.node for value in node.inputs if value.node is not None]
        level[node] = max(
            (level[x] + (_is_product(x) or x.op == GROUPED) for x in makers), default=0
        )
    return level


def _sums(graph: Graph) -> list[_Group]:
    """Sums of products that nothing else reads."""
    users, wanted = graph.users(), set(graph.outputs)

    def parts(node: Node) -> Optional[_Group]:
        """The products and additions of which a node is the sum; None if it is no sum."""
        found = _Group([], [])
        for value in node.inputs:
            made = value.node
            if made is None or len(users[value]) > 1 or value in wanted:
                return None
            if made.op == "add" and made.output.type == node.output.type:
                inner = parts(made)
            else:
                inner = _Group([made], []) if _is_product(made) else None
            if inner is None:
                return None
            found.products.extend(inner.products)
            found.others.extend(inner.others)
        found.others.append(node)
        return found

    groups: list[_Group] = []
    seen: set[Node] = set()
    for node in reversed(graph.nodes):
        group = parts(node) if node.op == "add" and node not in seen else None
        if group is not None:
            seen.update(group.others)
            kinds = {(_kind(x), x.output.type) for x in group.products}
            place = node.layer, node.direction
            if len(kinds) == 1 and _kind(group.products[0])[:2] == place:
                groups.append(group)
    return groups


def _groups(graph: Graph) -> list[_Group]:
    """Products that share an operand, the largest groups first."""
    level = _levels(graph)
    sharing: dict[Any, list[Node]] = {}
    for node in filter(_is_product, graph.nodes):
        for side, operand in enumerate(node.inputs):
            sharing.setdefault((side, operand, level[node], *_kind(node)), []).append(node)
    groups: list[_Group] = []
    seen: set[Node] = set()
    for (side, *_), members in sorted(sharing.items(), key=lambda item: -len(item[1])):
        products = [node for node in members if node not in seen]
        if len(products) > 1:
            seen.update(products)
            groups.append(_Group(products, [], side))
    return groups


def _rewrite(graph: Graph, groups: list[_Group]) -> None:
    replaced: dict[Value, Value] = {}
    made: dict[Node, Node] = {}
    removed: set[Node] = set()
    for products, others, side in groups:
        left, right = ([node.inputs[i] for node in products] for i in range(2))
        if not others:
            left, right = (left, right[:1]) if side else (left[:1], right)
        attrs = {**products[0].attrs, "lefts": len(left), "summed": bool(others)}
        last, operands = (others or products)[-1], [*left, *right]
        node = graph.make_node(
            GROUPED, operands, attrs, infer(GROUPED, operands, attrs), last.source
        )
        node.layer, node.direction, made[last] = last.layer, last.direction, node
        results = [last] if others else products
        replaced.update((old.output, new) for old, new in zip(results, node.outputs))
        removed.update(products, others)
    graph.nodes = [
        made.get(node, node) for node in graph.nodes if node in made or node not in removed
    ]
    graph.replace(replaced)
    graph.sort()
