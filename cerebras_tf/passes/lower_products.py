"""Chooses the matrix products whose operands are rounded to bfloat16; results stay float32.

Before: `%y: float32[64,64] = matmul(%x, %w)`; after: `%y: float32[64,64] = matmul(%x, %w;
compute="bfloat16")`. The pass does not fire where a size of the product is below 16 or unknown,
where the product is small, for other types than float32, where an integer depends on the product,
also through a comparison (a router's choice, an argmax, a count), and for operations that the user
keeps in float32, such as attention.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import Graph, Node, Value, bound_of
from cerebras_tf.ops import lookup, regions
from cerebras_tf.ops.registry import Region

# How operands are rounded.
ROUNDED = "bfloat16"
LEAST_SIZE = 16
# Multiplications of a product below which packing its operands costs what it saves.
LEAST_WORK = 1 << 21


def lower_products(graph: Graph, keep_float32: Sequence[str] = (), attention: bool = True) -> None:
    """Sets the attribute `compute` in place, also in regions.

    Args:
        graph: differentiated, its losses fused.
        keep_float32: regular expressions that are searched in `Node.source`; products that match
            stay float32.
        attention: whether products of attention are lowered.
    """
    deciding: set[Node] = set()
    _find_deciding(graph, set(), deciding)
    if not attention:
        deciding.update(node for node in _nodes(graph) if "attention" in node.op)
    kept = [re.compile(pattern) for pattern in keep_float32]
    for node in _nodes(graph):
        named = any(pattern.search(node.source) for pattern in kept)
        if not named and node not in deciding and _pays(node):
            node.attrs["compute"] = ROUNDED


def _nodes(graph: Graph) -> Iterator[Node]:
    """All nodes, those of regions too."""
    for node in graph.nodes:
        for inner in node.subgraphs.values():
            yield from _nodes(inner)
        yield node


def check_kept(graph: Graph, keep_float32: Sequence[str]) -> None:
    """Raises ConfigError for a pattern of keep_float32 that matches no product."""
    names = sorted({x.source for x in _nodes(graph) if lookup(x.op).products is not None})
    for pattern in keep_float32:
        if not any(re.search(pattern, name) for name in names):
            close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            raise ConfigError(
                "keep_float32: each pattern must match the name of a matrix product; a product "
                "fused with a loss has the loss's name. "
                f"Received: {pattern!r}, which matches none of {len(names)}, such as "
                f"{', '.join(close) or 'none'}. Fix the pattern, or remove it."
            )


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
    most = [bound_of(size) for size in sizes if size is not None]
    return min(most) >= LEAST_SIZE and math.prod(most) >= LEAST_WORK


def _find_deciding(graph: Graph, wanted: set[Value], found: set[Node]) -> None:
    """Finds products that an integer depends on, other than through another product.

    Args:
        wanted: its floats and bools that an integer depends on; those that are found are added.
        found: the products that are found are added.
    """
    for node in reversed(graph.nodes):
        at = [i for i, x in enumerate(node.outputs) if x in wanted or "int" in x.dtype]
        if lookup(node.op).products is not None and at:
            found.add(node)
        elif regions(node):
            entered: set[int] = set()
            for region in regions(node):
                within = _find_within(region, at, found)
                for position, value in zip(region.operands, region.graph.inputs):
                    if position is not None:
                        entered.add(position)
                        wanted.update([node.inputs[position]] if value in within else ())
            # The other operands decide which region runs, or how often.
            wanted.update(x for i, x in enumerate(node.inputs) if i not in entered and at)
        elif at and not lookup(node.op).of_range:  # as in a loss scale
            wanted.update(x for x in node.inputs if x.type.is_floating or x.dtype == "bool")


def _find_within(region: Region, at: Sequence[int], found: set[Node]) -> set[Value]:
    """Values of a region that integers depend on; `at`: such outputs of the node, by position."""
    graph = region.graph
    within = {
        value
        for value, position in zip(graph.outputs, region.outputs)
        if position in at or (position is None and at)
    }
    while True:
        _find_deciding(graph, within, found)
        more = {graph.outputs[o] for o, i in region.carried if graph.inputs[i] in within} - within
        if not more:
            return within
        within |= more
