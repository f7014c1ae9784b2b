"""Fuses rotary position embedding into one op, in the layout before the heads are transposed.

Before: `%a = mul(%x, %cos)  %r = concat(neg(%x2), %x1)  %b = mul(%r, %sin)  %y = add(%a, %b)` for
the halves %x1 and %x2 of %x; after: `%y = rotary(%x, %cos, %sin)`. Where %x is the transpose of %t,
%y becomes the transpose of `rotary(%t, ...)`, which its reader may undo. The pass does not fire
where a gradient is taken by a value in between. Source: Su et al., RoFormer (2021), equation 34,
with pairs of a half apart as in GPT-NeoX and Llama.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from cerebras_tf.ir import Graph, Node, Shape, Value
from cerebras_tf.ops import Builder
from cerebras_tf.ops.shape import reshape
from cerebras_tf.passes.rewrite import gradient_operands, rewrite


class _Found(NamedTuple):
    x: Value
    cos: Value
    sin: Value


def fuse_rotary(graph: Graph) -> None:
    """Replaces in place, before differentiation."""
    kept = gradient_operands(graph)

    def fused(b: Builder, node: Node) -> Optional[list[Value]]:
        found = _match(node, kept)
        return None if found is None else [_emit(b, found, kept)]

    rewrite(graph, fused, fold=False)


def _match(node: Node, kept: set[Value]) -> Optional[_Found]:
    if node.op != "add" or node.output.type.rank == 0:
        return None
    for whole, turned in (node.inputs, node.inputs[::-1]):
        for rotated, sin in _factors(turned):
            x = _turned(rotated)
            for same, cos in _factors(whole):
                if x is None or same is not x or x.type != node.output.type:
                    continue
                inner = {whole, turned, rotated, *_operands(rotated)}
                if not inner & kept and _fit(x.shape, cos, sin):
                    return _Found(x, cos, sin)
    return None


def _factors(value: Value) -> list[tuple[Value, Value]]:
    made = value.node
    if made is None or made.op != "mul":
        return []
    first, second = made.inputs
    return [(first, second), (second, first)]


def _operands(value: Value) -> list[Value]:
    return [] if value.node is None else value.node.inputs


def _turned(value: Value) -> Optional[Value]:
    """x, if the value is (-x2, x1) for the halves of x along the last axis."""
    made = value.node
    if made is None or made.op != "concat" or len(made.inputs) != 2:
        return None
    second, first = made.inputs
    if second.node is None or second.node.op != "neg":
        return None
    halves = (first.node, second.node.inputs[0].node)
    if any(half is None or half.op != "slice" for half in halves):
        return None
    x = value.node.inputs[1].node.inputs[0]  # type: ignore[union-attr]
    width = value.shape[-1]
    if x.type != value.type or not isinstance(width, int) or made.attrs["axis"] != x.type.rank - 1:
        return None
    same = all(_is_half(half, x, start) for half, start in zip(halves, (0, width // 2)))
    return x if same and width % 2 == 0 else None


def _is_half(node: Optional[Node], x: Value, start: int) -> bool:
    assert node is not None
    size = x.shape[-1]
    assert isinstance(size, int)
    rank = x.type.rank
    return (
        node.inputs[0] is x
        and tuple(node.attrs["starts"]) == (*(0,) * (rank - 1), start)
        and tuple(node.attrs["sizes"]) == (*x.shape[:-1], size // 2)
        and all(stride == 1 for stride in node.attrs["strides"])
    )


def _fit(shape: Shape, cos: Value, sin: Value) -> bool:
    """Whether cos and sin have one shape, which broadcasts to that of x along other axes."""
    if cos.type != sin.type or cos.shape[-1:] != shape[-1:] or len(cos.shape) > len(shape):
        return False
    pairs = zip(cos.shape[::-1], shape[::-1])
    return all(dim == 1 or (dim is not None and dim == size) for dim, size in pairs)


def _emit(b: Builder, found: _Found, kept: set[Value]) -> Value:
    x, cos, sin = found
    made = x.node
    rank = x.type.rank
    if made is None or made.op != "transpose" or x in kept:
        return b.op("rotary", x, cos, sin, transposed=False)
    order = tuple(made.attrs["permutation"])
    if order[-1] != rank - 1:
        return b.op("rotary", x, cos, sin, transposed=False)
    inverse = tuple(order.index(axis) for axis in range(rank))
    tables = [_transposed(b, value, inverse) for value in (cos, sin)]
    y = b.op("rotary", made.inputs[0], *tables, transposed=False)
    return b.op("transpose", y, permutation=order)


def _transposed(b: Builder, value: Value, order: tuple[int, ...]) -> Value:
    """The value in another order of axes; without a copy where axes of size 1 pass others."""
    shape = (1,) * (len(order) - value.type.rank) + value.shape
    value = reshape(b, value, shape)
    moved = [axis for axis in order if shape[axis] != 1]
    if moved == sorted(moved):
        return reshape(b, value, tuple(shape[axis] for axis in order))
    return b.op("transpose", value, permutation=order)
