"""The cost of an instruction in operations and bytes, from the op table and the types.

A backend adds the scratch memory of its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebras_tf.ir import Node, TensorType, bound_of, substitute, symbols_in
from cerebras_tf.ir.program import Cost, Price
from cerebras_tf.ops.registry import Attrs, is_view, lookup

# Ops that read only as many elements of their first operand as they return.
_PICKS = ("gather", "gather_nd", "slice")


@dataclass(frozen=True)
class Speeds:
    """Speeds of this computer.

    Attributes:
        flops_per_s: floating point operations of a large product per second.
        bytes_per_s: bytes read and written by memory-bound work per second.
    """

    flops_per_s: float
    bytes_per_s: float

    def seconds(self, cost: Cost) -> float:
        """Time of an instruction by the roofline model."""
        moved = cost.bytes_read + cost.bytes_written
        return max(cost.flops / self.flops_per_s, moved / self.bytes_per_s)


def price(
    op: str, inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Attrs
) -> Cost:
    """The cost of an op without the scratch memory of its kernel; unknown sizes count 0."""
    node = Node.of_types(op, inputs, outputs, attrs)
    if is_view(node):
        return Cost()
    moved = _bytes_read(node), sum(map(_bytes, outputs))
    structure = lookup(op).structure
    if structure is not None and structure.cost is not None:
        flops, scratch_bytes = structure.cost(attrs)
        return Cost(flops, *moved, scratch_bytes)
    return Cost(_flops(node), *moved)


def _flops(node: Node) -> int:
    cost = lookup(node.op).flops
    if cost is None or any(not value.type.is_static for value in [*node.inputs, *node.outputs]):
        return 0
    return bound_of(cost(node))


def _bytes_read(node: Node) -> int:
    sizes = [_bytes(value.type) for value in node.inputs]
    if node.op in _PICKS:
        sizes[0] = min(sizes[0], _bytes(node.output.type))
    return sum(sizes)


def _bytes(type: TensorType) -> int:
    return type.max_bytes if type.is_static else 0


def price_at_bounds(
    price: Price, op: str, inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Attrs
) -> Cost:
    """The price of an instruction for the largest sizes of its symbols."""
    bounds = {symbol.name: symbol.bound for symbol in symbols_in([*inputs, *outputs, attrs])}
    if not bounds:
        return price(op, inputs, outputs, attrs)
    return price(op, *substitute([list(inputs), list(outputs), attrs], bounds))
