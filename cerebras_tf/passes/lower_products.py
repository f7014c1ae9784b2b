"""Says which matrix products take their operands in bfloat16: sums and results stay float32.

Before: `%y: float32[64,64] = matmul(%x, %w)`; after: `%y: float32[64,64] = matmul(%x, %w;
compute="bfloat16")`. It must not fire where a size of the product is below 16 or known only when it
is computed, where so little is multiplied that rounding would cost more than it gives, for other
types than float32, where the product decides an integer, by a comparison too (a router's choice, an
argmax, a count): a rounded one would choose otherwise; and not for operations that the user keeps
in float32.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence

from cerebras_tf.errors import ConfigError
from cerebras_tf.ir import Graph, Node, Value, most_of
from cerebras_tf.ops import lookup, regions
from cerebras_tf.ops.registry import Region

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
    deciding: set[Node] = set()
    _find_deciding(graph, set(), deciding)
    _lower(graph, deciding, [re.compile(pattern) for pattern in keep_float32])


def _lower(graph: Graph, deciding: set[Node], kept: Sequence[re.Pattern[str]]) -> None:
    for node in graph.nodes:
        for inner in node.subgraphs.values():
            _lower(inner, deciding, kept)
        named = any(pattern.search(node.source) for pattern in kept)
        if not named and node not in deciding and _pays(node):
            node.attrs["compute"] = "bfloat16"


def check_kept(graph: Graph, keep_float32: Sequence[str]) -> None:
    """Refuses patterns that name nothing: one misspelt would let be lowered what shall stay.

    Args:
        graph: as lower_products has it.
        keep_float32: as there.

    Raises:
        ConfigError: a pattern is found in the name of no operation that has products.
    """
    names = sorted(set(_with_products(graph)))
    for pattern in keep_float32:
        if not any(re.search(pattern, name) for name in names):
            close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            raise ConfigError(
                "keep_float32: each pattern must be found in the name of a matrix product; those "
                "joined with a loss have its name. "
                f"Received: {pattern!r}, found in none of {len(names)}, such as "
                f"{', '.join(close) or 'none'}. Mend the pattern, or leave it out."
            )


def _with_products(graph: Graph) -> Iterator[str]:
    """Names of the operations that have products, those of inner graphs too."""
    for node in graph.nodes:
        for inner in node.subgraphs.values():
            yield from _with_products(inner)
        if lookup(node.op).products is not None:
            yield node.source


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


def _find_deciding(graph: Graph, wanted: set[Value], found: set[Node]) -> None:
    """Finds products from which an integer follows by other work than products.

    Args:
        graph: its nodes are walked from last to first.
        wanted: floats and bools of the graph from which an integer follows outside of it; those
            that are found join them, inputs too.
        found: the products join it.
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
            # The other operands choose a region, or how often it runs.
            wanted.update(x for i, x in enumerate(node.inputs) if i not in entered and at)
        elif at and not lookup(node.op).of_range:  # a loss scale counts steps by those
            wanted.update(x for x in node.inputs if x.type.is_floating or x.dtype == "bool")


def _find_within(region: Region, at: Sequence[int], found: set[Node]) -> set[Value]:
    """Values of a region from which an integer follows in the node's outputs at some positions."""
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
