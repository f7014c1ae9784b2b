"""The driver of rewrites: one traversal, one mapping of replacements, one prune.

A pass provides a rule. For every node, in order, the rule returns replacements of its outputs, or
None to keep the node; nodes that it emits precede the node. Replacements apply to operands of later
nodes and of emitted ones, so a rule may hold values that it found before the traversal. Time is
linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder

# rule(builder, node) -> replacements of the node's outputs, or None. It may also change the node's
# operands and keep it.
Rule = Callable[[Builder, Node], Optional[Sequence[Value]]]


def rewrite(graph: Graph, rule: Rule, fold: bool = True, again: bool = False) -> bool:
    """Applies a rule to every node once, then prunes the graph.

    Args:
        graph: changed in place; not valid after an exception.
        rule: is called with a builder that records the node's source, layer and direction, and with
            the node, its operands replaced.
        fold: whether the builder folds constants.
        again: whether the rule is applied to the nodes that it emits, too.

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
            # A replacement may have been replaced itself since the rule found it.
            replaced.update((old, replaced.get(new, new)) for old, new in zip(node.outputs, found))

    walk(nodes)
    graph.outputs = [replaced.get(value, value) for value in graph.outputs]
    graph.prune()
    return bool(replaced)


def gradient_operands(graph: Graph) -> set[Value]:
    """What `gradient` nodes read, without graph inputs: patterns must not hide these values.

    A value inside a fused op does not exist, and a gradient by it would silently be zero.
    """
    read = (value for node in graph.nodes if node.op == "gradient" for value in node.inputs)
    return {value for value in read if value.node is not None}
