"""Replaces a sum of parts that are padded to their places by a concatenation.

Before: `%a = pad(%x) {paddings=((0, 0), (0, 4))}  %b = pad(%y) {paddings=((0, 0), (3, 0))}
%s = add(%a, %b)`; after: `%s = concat(%x, %y) {axis=1}`. Gradients of slices are such sums, as of
the gates of a recurrent cell. The pass does not fire where parts overlap or leave a gap, and runs
after differentiation, which creates them.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ir import Graph, Node, Value
from cerebras_tf.ops import Builder
from cerebras_tf.passes.rewrite import rewrite


def join_pads(graph: Graph) -> None:
    """Replaces in place, also in regions."""
    users = graph.users()
    results = set(graph.outputs)

    def parts(value: Value) -> Optional[list[Node]]:
        """The pads whose sum a value is, if nothing else reads them."""
        node = value.node
        if node is None or node.op not in ("add", "pad"):
            return None
        if node.op == "pad":
            return [node]
        found: list[Node] = []
        for operand in node.inputs:
            if len(users.get(operand, ())) != 1 or operand in results:
                return None
            inner = parts(operand)
            if inner is None:
                return None
            found += inner
        return found

    def rule(b: Builder, node: Node) -> Optional[list[Value]]:
        for inner in node.subgraphs.values():
            join_pads(inner)
        if node.op != "add":
            return None
        readers = users.get(node.output, [])
        if len(readers) == 1 and readers[0].op == "add" and parts(readers[0].output):
            return None  # it is a part itself
        pads = parts(node.output)
        return None if pads is None else _joined(b, node, pads)

    rewrite(graph, rule)


def _joined(b: Builder, node: Node, pads: list[Node]) -> Optional[list[Value]]:
    axes = {
        axis
        for pad in pads
        for axis, (before, after) in enumerate(pad.attrs["paddings"])
        if (before, after) != (0, 0)
    }
    if len(axes) != 1 or any(pad.output.type != node.output.type for pad in pads):
        return None
    (axis,) = axes
    whole, end = node.output.shape[axis], 0
    places = [pad.attrs["paddings"][axis][0] for pad in pads]
    if not isinstance(whole, int) or not all(isinstance(place, int) for place in places):
        return None
    ordered = sorted(zip(places, pads), key=lambda pair: pair[0])
    for place, pad in ordered:
        size = pad.inputs[0].shape[axis]
        if place != end or not isinstance(size, int) or pad.attrs.get("value", 0) != 0:
            return None
        end += size
    if end != whole:
        return None
    return [b.op("concat", *(pad.inputs[0] for _, pad in ordered), axis=axis)]
