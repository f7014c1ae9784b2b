"""How rows of an op's outputs depend on rows of its operands: one rule for each op.

A row is the part of a value at one index of the leading axes. With two axes of x [B, T, H], x[b, t]
is the row of one token. A pass that removes rows (padding) asks every node whether its rows are
independent. Unknown sizes are never assumed to be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.ir import Node, Shape, Value


@dataclass(frozen=True)
class Rows:
    """Work that is done row by row.

    Row i of every output in `outputs` is a function of row i of the operands in `operands`, and of
    all other operands as a whole. All of these outputs and operands have the same leading sizes.

    Attributes:
        operands: positions of the operands that have rows.
        outputs: positions of the outputs that have rows.
        sums: positions of the outputs that are sums of one term for each row (the gradient of a
            weight). Outputs in neither group need all rows.
        spread: positions of operands that have only some of the row axes and are broadcast along
            the others, as [T, H] against [B, T, H].
    """

    operands: tuple[int, ...]
    outputs: tuple[int, ...] = (0,)
    sums: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()


# rule(node, axes), axes >= 1: the node on rows counted by the first `axes` axes; None if a row may
# depend on other rows, or the node has no such axes.
RowRule = Callable[[Node, int], Optional[Rows]]


def across(node: Node, axes: int) -> Optional[Rows]:
    """A row of the output may depend on any element of any operand."""
    return None


def elementwise(node: Node, axes: int) -> Optional[Rows]:
    """Every element depends on the elements at its own position, operands broadcast."""
    shape = node.outputs[0].shape
    outputs = tuple(range(len(node.outputs)))
    return _broadcast(node.inputs, shape, axes, outputs, trailing=len(shape))


def leading(
    *operands: int, outputs: Sequence[int] = (0,), sums: Sequence[int] = (), keep: int = 1
) -> RowRule:
    """Rows over any leading axes except the last `keep` of the first operand; see Rows."""

    def rule(node: Node, axes: int) -> Optional[Rows]:
        if axes > node.inputs[operands[0]].type.rank - keep:
            return None
        having = tuple(sorted(i for i in operands if i < len(node.inputs)))
        values = [node.inputs[i] for i in having] + [node.outputs[i] for i in outputs]
        if not _same_rows([value.shape for value in values], axes):
            return None
        summed = tuple(i for i in sums if i < len(node.outputs))
        return Rows(having, tuple(outputs), summed)

    return rule


def matmul(node: Node, axes: int) -> Optional[Rows]:
    """Rows of the left operand; batches of both; or a sum of products of rows, a^T b."""
    a, b = node.inputs
    turned_a, turned_b = (bool(node.attrs.get(f"transpose_{side}", False)) for side in "ab")
    if turned_a and not turned_b and a.type.rank == b.type.rank == 2 and axes == 1:
        return Rows((0, 1), (), (0,)) if _same_rows([a.shape, b.shape], 1) else None
    shape = node.output.shape
    if axes == len(shape) - 1 and not turned_a:
        shared = all(dim == 1 for dim in b.shape[:-2])
        return Rows((0,)) if shared and _same_rows([a.shape, shape], axes) else None
    return _broadcast(node.inputs, shape, axes, (0,), trailing=len(shape) - 2)


def reduction(node: Node, axes: int) -> Optional[Rows]:
    """Rows before the reduced axes; a sum over the first axes is a sum over rows."""
    x = node.inputs[0]
    given = node.attrs["axes"] if "axes" in node.attrs else [node.attrs["axis"]]
    reduced = {axis % x.type.rank for axis in given}
    if axes <= min(reduced, default=x.type.rank) and axes <= x.type.rank:
        return Rows((0,)) if _same_rows([x.shape, node.output.shape], axes) else None
    if node.op == "sum" and set(range(axes)) <= reduced:
        return Rows((0,), (), (0,))
    return None


def whole_sum(node: Node, axes: int) -> Optional[Rows]:
    """One number: a sum over all elements of the operand."""
    return Rows((0,), (), (0,)) if axes <= node.inputs[0].type.rank else None


def gather(node: Node, axes: int) -> Optional[Rows]:
    """Rows of the positions; of the table, before the gathered axis; or of the batch."""
    params, indices = node.inputs
    axis, batch = node.attrs["axis"], node.attrs["batch_dims"]
    if axis == batch == 0:
        having = {1: indices}
    elif axes <= batch:
        having = {0: params, 1: indices}
    elif batch == 0 and axes <= axis:
        having = {0: params}
    else:
        return None
    shapes = [value.shape for value in (*having.values(), node.output)]
    return Rows(tuple(having)) if _same_rows(shapes, axes) else None


def row_sum(ids: int, data: int, keep: int = 0) -> RowRule:
    """A table into which row i of the data is added at the position in row i of the ids."""

    def rule(node: Node, axes: int) -> Optional[Rows]:
        operands = [node.inputs[ids], node.inputs[data]]
        if axes > operands[0].type.rank - keep:
            return None
        same = _same_rows([value.shape for value in operands], axes)
        return Rows(tuple(sorted((ids, data))), (), (0,)) if same else None

    return rule


def reshape(node: Node, axes: int) -> Optional[Rows]:
    """Leading axes that keep their sizes."""
    return Rows((0,)) if _same_rows([node.inputs[0].shape, node.output.shape], axes) else None


def one_hot(node: Node, axes: int) -> Optional[Rows]:
    """Leading axes before the inserted one."""
    axis = node.attrs["axis"] % node.output.type.rank
    return reshape(node, axes) if axes <= axis else None


def pad(node: Node, axes: int) -> Optional[Rows]:
    """Leading axes without padding."""
    none = all(tuple(pair) == (0, 0) for pair in node.attrs["paddings"][:axes])
    return reshape(node, axes) if none else None


def transpose(node: Node, axes: int) -> Optional[Rows]:
    """Leading axes that are not moved."""
    stay = tuple(node.attrs["permutation"])[:axes] == tuple(range(axes))
    return reshape(node, axes) if stay else None


def slicing(node: Node, axes: int) -> Optional[Rows]:
    """Leading axes that are not cut (slice, place)."""
    whole = all(start == 0 for start in node.attrs["starts"][:axes])
    whole = whole and all(stride == 1 for stride in node.attrs["strides"][:axes])
    return reshape(node, axes) if whole else None


def reverse(node: Node, axes: int) -> Optional[Rows]:
    """Leading axes that are not reversed."""
    return reshape(node, axes) if min(node.attrs["axes"], default=axes) >= axes else None


def concat(node: Node, axes: int) -> Optional[Rows]:
    """Leading axes before the concatenated one."""
    shapes = [value.shape for value in [*node.inputs, node.output]]
    if axes > node.attrs["axis"] or not _same_rows(shapes, axes):
        return None
    return Rows(tuple(range(len(node.inputs))))


def attention(first: int) -> RowRule:
    """Items of the batch; none with dropout, whose random numbers depend on the position.

    `first` is the position of the query.
    """

    def rule(node: Node, axes: int) -> Optional[Rows]:
        if axes != 1 or "rate" in node.attrs:
            return None
        required = first + 3 + (2 if first else 0)
        operands = tuple(range(required))
        having = [node.inputs[i] for i in operands]
        for i, bias in enumerate(node.inputs[required:], required):
            if bias.type.rank == 4 and bias.shape[0] != 1:
                operands, having = (*operands, i), [*having, bias]
        same = _same_rows([value.shape for value in [*having, *node.outputs]], 1)
        return Rows(operands, tuple(range(len(node.outputs)))) if same else None

    return rule


def _same_rows(shapes: Sequence[Shape], axes: int) -> bool:
    """Whether the first `axes` axes of all shapes have known and equal sizes."""
    heads = {shape[:axes] for shape in shapes}
    return len(heads) == 1 and all(len(head) == axes and None not in head for head in heads)


def _broadcast(
    operands: Sequence[Value], shape: Shape, axes: int, outputs: tuple[int, ...], trailing: int
) -> Optional[Rows]:
    """Rows of operands that broadcast to `shape`, over at most the first `trailing` axes."""
    head = shape[:axes]
    if axes > trailing or None in head:
        return None
    having, spread = [], []
    for i, value in enumerate(operands):
        padded = ((1,) * (len(shape) - value.type.rank) + value.shape)[:axes]
        if padded == head and value.type.rank == len(shape):
            having.append(i)
        elif any(dim != 1 for dim in padded):
            spread.append(i)
    return Rows(tuple(having), outputs, spread=tuple(spread)) if having else None
