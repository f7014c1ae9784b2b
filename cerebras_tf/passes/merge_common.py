"""Common subexpression elimination.

Before: `%a = exp(%x)  %b = exp(%x)`; after: uses of %b are uses of %a. Nodes that draw random
numbers are not merged, nor values that a `gradient` node reads: their gradients differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from typing import Any, Optional

import numpy as np

from cerebras_tf.ir import Array, Graph, Node, Value
from cerebras_tf.ir.text import print_attribute
from cerebras_tf.ops import Builder, draws
from cerebras_tf.passes.rewrite import rewrite


def merge_common(graph: Graph) -> None:
    """Merges in place; the earlier node stays."""
    apart = {value for node in graph.nodes if node.op == "gradient" for value in node.inputs}
    seen: dict[Any, list[Value]] = {}

    def earlier(b: Builder, node: Node) -> Optional[list[Value]]:
        if draws(node) or any(value in apart for value in node.outputs):
            return None
        attrs = tuple((key, _content(value)) for key, value in sorted(node.attrs.items()))
        types = tuple(value.type for value in node.outputs)
        first = seen.setdefault((node.op, tuple(node.inputs), attrs, types), node.outputs)
        return None if first is node.outputs else first

    rewrite(graph, earlier)


def _content(attribute: Any) -> Hashable:
    return _Bytes(attribute) if isinstance(attribute, np.ndarray) else print_attribute(attribute)


class _Bytes:
    """An array as a dictionary key: equal if dtype, shape and all bits are."""

    def __init__(self, array: Array) -> None:
        self.array = np.ascontiguousarray(array)
        self.head = (array.dtype, array.shape, zlib.crc32(self.array.data))

    def __hash__(self) -> int:
        return hash(self.head)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bytes) or self.head != other.head:
            return False
        mine, theirs = (x.array.reshape(-1).view(np.uint8) for x in (self, other))
        return self.array is other.array or bool(np.array_equal(mine, theirs))
