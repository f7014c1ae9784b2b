"""Recognises additive masks that hide later positions, whether constant or made of symbolic sizes.

Changes no graph. A mask of symbolic sizes is computed once, for the largest: where every element
depends on its own row and column alone, the mask of fewer positions is a corner of that one.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from cerebras_tf.ir import Array, Node, Value, substitute, symbols_in
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import lookup

# A mask at or below this hides: exp(score + mask - max) is 0 in float32 for scores within 9e3.
HIDDEN = -1e4
# Larger masks, and what they are made of, are not computed to be looked at.
_MOST_BYTES, _MOST_NODES = 1 << 26, 64


def is_causal(mask: Value) -> bool:
    """Whether a mask [1.., S, T] is 0 up to the diagonal that ends in the corner, and hides what is
    behind it, for every S and T that it may have."""
    array = mask.constant if mask.constant is not None else _largest(mask)
    if array is None or array.ndim < 2 or array.size != array.shape[-2] * array.shape[-1]:
        return False
    square = array.reshape(array.shape[-2:])
    rows, columns = square.shape
    if columns < rows:
        return False
    hidden = np.arange(columns)[None, :] > np.arange(rows)[:, None] + (columns - rows)
    return bool(np.all(square[~hidden] == 0) and np.all(square[hidden] <= HIDDEN))


def _largest(mask: Value) -> Optional[Array]:
    """A square mask for the largest size, of which those for others are corners; None: unknown."""
    if mask.type.rank < 2 or mask.shape[-1] != mask.shape[-2]:
        return None
    nodes: dict[Node, None] = {}
    if not _collect(mask, nodes):
        return None
    symbols = symbols_in([value.type for node in nodes for value in node.outputs])
    sizes = {symbol.name: symbol.most for symbol in symbols}
    content: dict[Value, Array] = {}
    for node in nodes:
        arrays = [content[value] for value in node.inputs]
        (content[node.output],) = evaluate(node.op, arrays, substitute(node.attrs, sizes))
    return content[mask]


def _collect(value: Value, nodes: dict[Node, None]) -> bool:
    """Adds what a value is made of, in order; False where an element may depend on more than its
    position."""
    node = value.node
    if node is None or len(node.outputs) != 1 or not value.type.is_bounded:
        return False
    if node in nodes:
        return True
    if value.type.most_bytes > _MOST_BYTES or len(nodes) > _MOST_NODES or not _is_local(node):
        return False
    if not all(_collect(operand, nodes) for operand in node.inputs):
        return False
    nodes[node] = None
    return True


def _is_local(node: Node) -> bool:
    """Whether elements keep their values and positions when axes are shorter."""
    attrs = node.attrs
    if node.op == "iota":
        return isinstance(attrs["start"], int) and isinstance(attrs["step"], int)
    if node.op == "reshape":
        before, after = (
            [dim for dim in shape if dim != 1]
            for shape in (node.inputs[0].shape, node.output.shape)
        )
        return before == after
    if node.op in ("cumsum", "cumprod"):
        return not attrs["reverse"]
    if node.op == "slice":
        return all(isinstance(start, int) for start in attrs["starts"])
    if node.op in ("constant", "broadcast_to", "transpose"):
        return True
    if node.op == "band_part":
        return isinstance(attrs["lower"], int) and isinstance(attrs["upper"], int)
    return lookup(node.op).elementwise
