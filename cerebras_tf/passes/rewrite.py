"""The driver of rewrites: one walk over the nodes, one mapping, one prune.

A pass gives a rule. For every node, in order, the rule says which values stand for its outputs from
here on, or None where the node stays; what it builds goes in front of the node. Whatever was
replaced before is replaced in the operands of later nodes and of what rules build, so a rule may
hold values that it found before the walk began. Time is linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder

# rule(builder in front of the node, node) -> values in place of the node's outputs, or None. It
# may also give the node other operands and leave it.
Rule = Callable[[Builder, Node], Optional[Sequence[Value]]]


def rewrite(graph: Graph, rule: Rule, fold: bool = True, again: bool = False) -> bool:
    """Applies a rule to every node once, then drops the nodes nobody needs any more.

    Args:
        graph: changed in place; of no use any more where the rule raises.
        rule: sees each node with its operands replaced, and a builder with the node's source, layer
            and direction.
        fold: whether what rules build of constants is computed at once.
        again: whether what the rule builds in place of a node is shown to the rule, too.

    Returns:
        Whether any node was replaced.
    """
    nodes = graph.nodes
    graph.nodes = []
    b = Builder(graph, evaluate if fold else None)
    replaced = b.replaced

    def walk(nodes: list[Node]) -> None:
        for node in nodes:
            node.inputs = [replaced.get(value, value) for value in node.inputs]
            b.source, b.layer, b.direction = node.source, node.layer, node.direction
            start = len(graph.nodes)
            found = rule(b, node)
            if found is None:
                graph.nodes.append(node)
                continue
            if again:
                built = graph.nodes[start:]
                del graph.nodes[start:]
                walk(built)
            # What stands for an output may have been replaced itself since the rule found it.
            replaced.update((old, replaced.get(new, new)) for old, new in zip(node.outputs, found))

    walk(nodes)
    graph.outputs = [replaced.get(value, value) for value in graph.outputs]
    graph.prune()
    return bool(replaced)


def gradient_operands(graph: Graph) -> set[Value]:
    """What `gradient` nodes read, graph inputs left out."""
    return {
        value
        for node in graph.nodes
        if node.op == "gradient"
        for value in node.inputs
        if value.node is not None
    }
