"""Says which matrix products take their operands in bfloat16: sums and results stay float32.

Before: `%y: float32[64,64] = matmul(%x, %w)`; after: `%y: float32[64,64] = matmul(%x, %w;
compute="bfloat16")`. It must not fire where a size of the product is below 16 or known only when it
is computed, where so little is multiplied that rounding would cost more than it gives, for other
types than float32, where the product decides an index (a router's choice, an argmax): a rounded one
would choose otherwise; and not for operations that the user keeps in float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cerebras_tf.ir import Graph, Node, Value, most_of
from cerebras_tf.ops import lookup

LEAST_SIZE = 16
# Multiplications of a product below which packing its operands takes as long as it saves.
LEAST_WORK = 1 << 21


def lower_products(graph: Graph, keep_float32: Sequence[str] = ()) -> None:
    """Sets the attribute `compute` in place, in graphs within attributes too.

    Args:
        graph: differentiated, its losses fused.
        keep_float32: regular expressions; products of operations whose name one of them is found
            in stay as they are.
    """
    kept = [re.compile(pattern) for pattern in keep_float32]
    _lower(graph, kept)


def _lower(graph: Graph, kept: Sequence[re.Pattern[str]]) -> None:
    deciding = _deciding(graph)
    for node in graph.nodes:
        for inner in node.subgraphs.values():
            _lower(inner, kept)
        named = any(pattern.search(node.source) for pattern in kept)
        if not named and node not in deciding and _pays(node):
            node.attrs["compute"] = "bfloat16"


def _pays(node: Node) -> bool:
    products = lookup(node.op).products
    if products is None:
        return False
    floats = [value for value in [*node.inputs, *node.outputs] if value.type.is_floating]
    if any(value.dtype != "float32" for value in floats):
        return False
    sizes = products(node)
    if any(size is None for size in sizes):
        return False
    most = [most_of(size) for size in sizes if size is not None]
    return min(most) >= LEAST_SIZE and math.prod(most) >= LEAST_WORK


def _deciding(graph: Graph) -> set[Node]:
    """Products from which an integer follows by other work than products."""
    seen: set[Value] = set()
    found: set[Node] = set()
    waiting = [
        value
        for node in graph.nodes
        if any("int" in output.dtype for output in node.outputs)
        for value in node.inputs
        if value.type.is_floating
    ]
    while waiting:
        value = waiting.pop()
        if value in seen or value.node is None:
            continue
        seen.add(value)
        if lookup(value.node.op).products is not None:
            found.add(value.node)
            continue
        waiting += [operand for operand in value.node.inputs if operand.type.is_floating]
    return found
