"""Fuses elementwise nodes of equal shape into `fused_elementwise` nodes.

Before: `%a = mul(%x, %y)  %b = add(%a, %z)`; after: `%b = fused_elementwise(%x, %y, %z) {body}`
where only %b is used elsewhere. Nodes of different layers or directions are not fused (the schedule
separates them), nor nodes of different shapes (small work would be repeated), nor nodes with a
path through another node between them (a cycle could result).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import lookup

FUSED = "fused_elementwise"


def fuse_elementwise(graph: Graph, group_of: Callable[[Node], Hashable]) -> None:
    """Fuses in place, in schedule order, nodes for which `group_of` is equal."""
    levels = _levels(graph, group_of)
    _rewrite(graph, _clusters(graph, levels, group_of))


def _fusible(node: Node) -> bool:
    if not lookup(node.op).elementwise or len(node.outputs) != 1:
        return False
    return node.output.type.is_bounded and node.output.type.size != 0


def _joinable(
    maker: Node, node: Node, levels: dict[Node, int], group_of: Callable[[Node], Hashable]
) -> bool:
    """Whether a node may be fused with one that it reads, at equal levels."""
    return maker in levels and node in levels and _match(maker, node, group_of)


def _match(maker: Node, node: Node, group_of: Callable[[Node], Hashable]) -> bool:
    return maker.output.shape == node.output.shape and group_of(maker) == group_of(node)


def _clusters(
    graph: Graph, levels: dict[Node, int], group_of: Callable[[Node], Hashable]
) -> dict[Node, list[Node]]:
    """For every fusible node, the nodes that it is fused with, including itself."""
    clusters: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node not in levels:
            continue
        mine = clusters.setdefault(node, [node])
        for value in node.inputs:
            maker = value.node
            if maker is None or not _joinable(maker, node, levels, group_of):
                continue
            other = clusters[maker]
            if levels[maker] == levels[node] and other is not mine:
                mine, other = sorted((mine, other), key=len, reverse=True)
                mine.extend(other)
                clusters.update((member, mine) for member in other)
    return clusters


def _levels(graph: Graph, group_of: Callable[[Node], Hashable]) -> dict[Node, int]:
    """For fusible nodes, the most cluster boundaries before them on any path."""
    level: dict[Node, int] = {}
    fusible: dict[Node, int] = {}
    for node in graph.nodes:
        can = _fusible(node)
        depth = 0
        for value in node.inputs:
            maker = value.node
            if maker is None:
                continue
            same = can and maker in fusible and _match(maker, node, group_of)
            depth = max(depth, level[maker] + (0 if same else maker in fusible))
        level[node] = depth
        if can:
            fusible[node] = depth
    _raise_clusters(graph, fusible, group_of)
    return fusible


def _raise_clusters(
    graph: Graph, fusible: dict[Node, int], group_of: Callable[[Node], Hashable]
) -> None:
    """Raises clusters that only fusible nodes read to the lowest level of their readers.

    For example `0.9 slot` in an update that waits for a norm: its level is 0, that of its readers
    is not. No level falls or exceeds that of a reader, so clusters still form no cycle.
    """
    users = graph.users()
    clusters = {id(members): members for members in _clusters(graph, fusible, group_of).values()}
    for members in sorted(clusters.values(), key=lambda members: -fusible[members[0]]):
        inside, first = set(members), fusible[members[0]]
        outputs = [node for node in members if not inside.issuperset(users.get(node.output, ()))]
        readers = [
            (node, reader)
            for node in outputs
            for reader in users[node.output]
            if reader not in inside
        ]
        # Another reader would wait for the whole cluster.
        if not readers or not all(_joinable(*pair, fusible, group_of) for pair in readers):
            continue
        most = min(fusible[reader] for _, reader in readers)
        if most > first:
            fusible.update(dict.fromkeys(members, most))


def _rewrite(graph: Graph, clusters: dict[Node, list[Node]]) -> None:
    position = {node: i for i, node in enumerate(graph.nodes)}
    users = graph.users()
    wanted = set(graph.outputs)
    replaced: dict[Value, Value] = {}
    last_of: dict[Node, Node] = {}
    for members in {id(c): c for c in clusters.values()}.values():
        members.sort(key=lambda node: position[node])
        inside = set(members)
        outputs = [
            node.output
            for node in members
            if node.output in wanted or any(u not in inside for u in users.get(node.output, ()))
        ]
        fused = _make(graph, members, outputs)
        replaced.update(zip(outputs, fused.outputs))
        last_of[members[-1]] = fused
    kept = []
    for node in graph.nodes:
        if node in last_of:
            kept.append(last_of[node])
        elif node not in clusters:
            kept.append(node)
    graph.nodes = kept
    graph.replace(replaced)
    graph.sort()


def _make(graph: Graph, members: list[Node], outputs: list[Value]) -> Node:
    """One node for a cluster; scalar constants move into its body."""
    body = Graph("body")
    mapping: dict[Value, Value] = {}
    operands: list[Value] = []
    for node in members:
        for value in node.inputs:
            if value in mapping:
                continue
            constant = value.constant
            if constant is not None and constant.size == 1:
                attrs = {"value": constant, "dtype": value.dtype}
                inner = body.make_node("constant", [], attrs, [value.type])
                body.nodes.append(inner)
                mapping[value] = inner.output
            else:
                mapping[value] = body.add_input("x", value.type)
                operands.append(value)
        inner_inputs = [mapping[value] for value in node.inputs]
        copy = body.make_node(node.op, inner_inputs, dict(node.attrs), [node.output.type])
        body.nodes.append(copy)
        mapping[node.output] = copy.output
    body.outputs = [mapping[value] for value in outputs]
    fused = graph.make_node(
        FUSED, operands, {"body": body}, [v.type for v in outputs], members[-1].source
    )
    fused.layer, fused.direction = members[-1].layer, members[-1].direction
    return fused
