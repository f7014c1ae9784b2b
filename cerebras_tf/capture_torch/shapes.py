"""Rules of ops on shapes, of slices, of constructors and of lookups by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from cerebras_tf.capture_torch.elementwise import Number
from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Size, Value
from cerebras_tf.ops.inference import broadcast_shapes
from cerebras_tf.ops.shape import reshape
from cerebras_tf.ops.sizes import counted, counts
from cerebras_tf.ops.slicing import cut

_MASKS = "the mask must have the tensor's first sizes, and the value be one number."


def transposed(low: Lowering, x: Value, permutation: Sequence[int]) -> Value:
    """Emits x with its axes in another order; undoes a transposition that is the inverse."""
    order = tuple(permutation)
    identity = tuple(range(len(order)))
    if order == identity:
        return x
    if x.node is not None and x.node.op == "transpose":
        first = x.node.attrs["permutation"]
        if tuple(first[axis] for axis in order) == identity:
            return x.node.inputs[0]
    return low.b.op("transpose", x, permutation=order)


def _reshaped(low: Lowering, x: Value) -> Value:
    return reshape(low.b, x, low.shape)


@lowers("view", "_unsafe_view")
def _view(low: Lowering, x: Value, size: Any) -> Value:
    return _reshaped(low, x)


@lowers("reshape")
def _reshape(low: Lowering, x: Value, shape: Any) -> Value:
    return _reshaped(low, x)


@lowers("flatten.using_ints")
def _flatten(low: Lowering, x: Value, start_dim: int, end_dim: int) -> Value:
    return _reshaped(low, x)


@lowers("unflatten.int")
def _unflatten(low: Lowering, x: Value, dim: int, sizes: Any) -> Value:
    return _reshaped(low, x)


@lowers("unsqueeze", "squeeze.dim", "squeeze.dims")
def _unsqueeze(low: Lowering, x: Value, dim: Any) -> Value:
    return _reshaped(low, x)


@lowers("squeeze")
def _squeeze(low: Lowering, x: Value) -> Value:
    return _reshaped(low, x)


@lowers("permute")
def _permute(low: Lowering, x: Value, dims: Sequence[int]) -> Value:
    return transposed(low, x, [axis % len(dims) for axis in dims])


@lowers("transpose.int")
def _transpose(low: Lowering, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.type.rank))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return transposed(low, x, order)


@lowers("t", "numpy_T")
def _t(low: Lowering, x: Value) -> Value:
    return transposed(low, x, range(x.type.rank)[::-1])


@lowers("expand")
def _expand(low: Lowering, x: Value, size: Any) -> Value:
    return x if x.shape == low.shape else low.b.op("broadcast_to", x, shape=low.shape)


@lowers("broadcast_tensors")
def _broadcast_tensors(low: Lowering, tensors: Sequence[Value]) -> tuple[Value, ...]:
    pairs = zip(tensors, low.shapes)
    return tuple(
        x if x.shape == shape else low.b.op("broadcast_to", x, shape=shape) for x, shape in pairs
    )


@lowers("one_hot")
def _one_hot(low: Lowering, x: Value, num_classes: int) -> Value:
    attrs = {"depth": low.shape[-1], "axis": -1, "on_value": 1, "off_value": 0}
    return low.b.op("one_hot", x, dtype=low.dtype, **attrs)


@lowers("expand_as")
def _expand_as(low: Lowering, x: Value, other: Value) -> Value:
    return x if x.shape == low.shape else low.b.op("broadcast_to", x, shape=low.shape)


@lowers("repeat_interleave.self_int")
def _repeat_interleave(low: Lowering, x: Value, repeats: Size, dim: Optional[int]) -> Value:
    """Every element `repeats` times, one after the other."""
    rows = reshape(low.b, x, (None,)) if dim is None else x
    axis = (dim or 0) % rows.type.rank
    before, after = rows.shape[: axis + 1], rows.shape[axis + 1 :]
    column = reshape(low.b, rows, (*before, 1, *after))
    copies = low.b.op("broadcast_to", column, shape=(*before, repeats, *after))
    return _reshaped(low, copies)


@lowers("flip")
def _flip(low: Lowering, x: Value, dims: Sequence[int]) -> Value:
    return low.b.op("reverse", x, axes=tuple(sorted(_axis(x, dim) for dim in dims)))


@lowers("repeat")
def _repeat(low: Lowering, x: Value, repeats: Sequence[Size]) -> Value:
    padded = reshape(low.b, x, (1,) * (len(repeats) - x.type.rank) + x.shape)
    return low.b.op("tile", padded, multiples=tuple(repeats))


def _axis(x: Value, dim: int) -> int:
    return dim % max(x.type.rank, 1)


def _first(size: Optional[Size], kept: Optional[Size], start: Optional[Size], step: int) -> Size:
    """The first index of a slice; torch moves it into the axis.

    Args:
        size: of the axis.
        kept: size of the slice.
    """
    if start is None or kept == 0 or (step == 1 and kept == size):
        return 0
    if not isinstance(start, int):
        return start
    if isinstance(size, int):
        return min(start, size) if start >= 0 else max(size + start, 0)
    return start if start >= 0 else (size or 0) + start


@lowers("slice.Tensor")
def _slice(
    low: Lowering, x: Value, dim: int, start: Optional[Size], end: Optional[Size], step: int
) -> Value:
    axis = _axis(x, dim)
    size, first = low.shape[axis], _first(x.shape[axis], low.shape[axis], start, step)
    if step == 1:
        return cut(low.b, x, axis, first, size)
    starts = tuple(first if i == axis else 0 for i in range(x.type.rank))
    strides = tuple(step if i == axis else 1 for i in range(x.type.rank))
    return low.b.op("slice", x, starts=starts, sizes=low.shape, strides=strides)


@lowers("slice_scatter")
def _slice_scatter(
    low: Lowering, x: Value, src: Value, dim: int, start: Optional[Size], end: Optional[Size]
) -> Value:
    axis = _axis(x, dim)
    return _joined(low, x, src, axis, _first(x.shape[axis], src.shape[axis], start, 1))


@lowers("select_scatter")
def _select_scatter(low: Lowering, x: Value, src: Value, dim: int, index: Size) -> Value:
    axis = _axis(x, dim)
    if isinstance(index, int) and index < 0:
        index = (x.shape[axis] or 0) + index
    row = reshape(low.b, src, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _joined(low, x, row, axis, index)


def _joined(low: Lowering, x: Value, part: Value, axis: int, start: Size) -> Value:
    """x with a part of it replaced, from `start` along an axis."""
    size: Size = x.shape[axis]  # type: ignore[assignment]
    end: Size = start + part.shape[axis]  # type: ignore[operator]
    pieces = [
        *([cut(low.b, x, axis, 0, start)] if start != 0 else []),
        low.value(part),
        *([cut(low.b, x, axis, end, size - end)] if end != size else []),
    ]
    return low.b.op("concat", *pieces, axis=axis) if len(pieces) > 1 else pieces[0]


@lowers("select.int")
def _select(low: Lowering, x: Value, dim: int, index: Size) -> Value:
    axis = _axis(x, dim)
    if isinstance(index, int) and index < 0:
        index = (x.shape[axis] or 0) + index
    return _reshaped(low, cut(low.b, x, axis, index, 1))


def _pieces(low: Lowering, x: Value, dim: int) -> tuple[Value, ...]:
    axis, start, found = _axis(x, dim), 0, []
    for shape in low.shapes:
        found.append(cut(low.b, x, axis, start, shape[axis]))
        start = start + shape[axis]  # type: ignore[assignment]
    return tuple(found)


@lowers("split.Tensor", "unsafe_split.Tensor")
def _split(low: Lowering, x: Value, split_size: Any, dim: int) -> tuple[Value, ...]:
    return _pieces(low, x, dim)


@lowers("split_with_sizes")
def _split_with_sizes(low: Lowering, x: Value, split_sizes: Any, dim: int) -> tuple[Value, ...]:
    return _pieces(low, x, dim)


@lowers("chunk")
def _chunk(low: Lowering, x: Value, chunks: int, dim: int) -> tuple[Value, ...]:
    return _pieces(low, x, dim)


@lowers("unbind.int")
def _unbind(low: Lowering, x: Value, dim: int) -> tuple[Value, ...]:
    axis = _axis(x, dim)
    cuts = [cut(low.b, x, axis, i, 1) for i in range(len(low.shapes))]
    return tuple(reshape(low.b, item, shape) for item, shape in zip(cuts, low.shapes))


@lowers("cat")
def _cat(low: Lowering, tensors: Sequence[Value], dim: int) -> Value:
    """Empty tensors of one axis are left out, as torch does whatever the shapes of others."""
    found = [tensor for tensor in tensors if tensor.shape != (0,)] or tensors[:1]
    if len(found) == 1:
        return low.value(found[0])
    return low.b.op("concat", *map(low.value, found), axis=_axis(found[0], dim))


@lowers("stack")
def _stack(low: Lowering, tensors: Sequence[Value], dim: int) -> Value:
    axis = dim % (tensors[0].type.rank + 1)
    rows = [reshape(low.b, t, (*t.shape[:axis], 1, *t.shape[axis:])) for t in tensors]
    return low.b.op("concat", *map(low.value, rows), axis=axis)


@lowers("constant_pad_nd")
def _constant_pad(low: Lowering, x: Value, pad: Sequence[int], value: float) -> Value:
    """`pad` holds pairs (before, after), the last axis first."""
    pairs = [(pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]
    paddings = ((0, 0),) * (x.type.rank - len(pairs)) + tuple(reversed(pairs))
    for axis, pair in enumerate(paddings):
        before, after = (max(0, -size) for size in pair)
        size: Any = x.shape[axis]
        if before or after:
            x = cut(low.b, x, axis, before, size - before - after)
    paddings = tuple((max(0, before), max(0, after)) for before, after in paddings)
    return low.b.op("pad", x, paddings=paddings, value=value or 0)


@lowers("arange", "arange.start", "arange.start_step")
def _arange(low: Lowering, end: Any, start: Any = 0, step: Any = 1, dtype: Any = None) -> Value:
    return counted(low.b, low.shape[0], step, low.dtype, start)


def _filled(low: Lowering, number: Number) -> Value:
    value = low.value(number)
    return low.b.op("broadcast_to", value, shape=low.shape) if low.shape else value


@lowers("full")
def _full(low: Lowering, size: Any, fill_value: Number, dtype: Any) -> Value:
    return _filled(low, fill_value)


@lowers("full_like")
def _full_like(low: Lowering, x: Value, fill_value: Number, dtype: Any) -> Value:
    return _filled(low, fill_value)


@lowers("new_full")
def _new_full(low: Lowering, x: Value, size: Any, fill_value: Number, dtype: Any) -> Value:
    return _filled(low, fill_value)


@lowers("scalar_tensor")
def _scalar_tensor(low: Lowering, s: Number, dtype: Any) -> Value:
    return _filled(low, s)


def _constructors(name: str, number: int) -> None:
    @lowers(f"{name}.memory_format" if name == "empty" else name)
    def of_size(low: Lowering, size: Any, dtype: Any) -> Value:
        return _filled(low, number)

    @lowers(f"{name}_like")
    def like(low: Lowering, x: Value, dtype: Any) -> Value:
        return _filled(low, number)

    @lowers(f"new_{name}")
    def new(low: Lowering, x: Value, size: Any, dtype: Any) -> Value:
        return _filled(low, number)


_constructors("zeros", 0)
_constructors("ones", 1)
_constructors("empty", 0)


@lowers("empty_permuted")
def _empty_permuted(low: Lowering, size: Any, physical_layout: Any, dtype: Any) -> Value:
    return _filled(low, 0)


@lowers("tril")
def _tril(low: Lowering, x: Value, diagonal: int) -> Value:
    return _triangle(low, x, diagonal, below=True)


@lowers("triu")
def _triu(low: Lowering, x: Value, diagonal: int) -> Value:
    return _triangle(low, x, diagonal, below=False)


def _triangle(low: Lowering, x: Value, diagonal: int, below: bool) -> Value:
    """Elements [..., i, j] with j - i at most, or at least, `diagonal`; zeros elsewhere."""
    b, (rows, columns) = low.b, low.shape[-2:]
    column = reshape(b, counted(b, rows, 1, "int64"), (rows, 1))
    offset = b.op("sub", counted(b, columns, 1, "int64"), column)
    kept = b.op("less_equal" if below else "greater_equal", offset, b.constant(diagonal, "int64"))
    return b.op("select", kept, x, b.constant(0, x.dtype))


@lowers("diff")
def _diff(
    low: Lowering, x: Value, dim: int, prepend: Optional[Value], append: Optional[Value]
) -> Value:
    axis = _axis(x, dim)
    parts = [part for part in (prepend, x, append) if part is not None]
    whole = low.b.op("concat", *parts, axis=axis) if len(parts) > 1 else x
    size = low.shape[axis]
    return low.b.op("sub", cut(low.b, whole, axis, 1, size), cut(low.b, whole, axis, 0, size))


def _counted_axis(index: Value, size: Optional[Size]) -> Optional[int]:
    """The axis along which an index is 0, 1, ... size - 1, if all other axes have size 1."""
    axes = [axis for axis, each in enumerate(index.shape) if each != 1]
    if len(axes) != 1 or index.shape[axes[0]] != size:
        return None
    if index.constant is not None:
        same = np.array_equal(index.constant.reshape(-1), np.arange(index.constant.size))
        return axes[0] if same else None
    node = index.node
    while node is not None and node.op in ("reshape", "cast", "add"):
        others = [value.constant for value in node.inputs[1:]]
        if any(constant is None or constant.any() for constant in others):
            return None
        node = node.inputs[0].node
    if node is None or node.op != "iota":
        return None
    counts = (node.attrs["size"], node.attrs["start"], node.attrs["step"]) == (size, 0, 1)
    return axes[0] if counts else None


def _coordinates(
    low: Lowering, x: Value, indices: Sequence[Optional[Value]]
) -> tuple[list[int], list[Value], Shape]:
    """The axes of x that are indexed, the index of each, not negative, and their common shape."""
    b, pairs = low.b, [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if any("int" not in index.dtype for _, index in pairs):
        raise UnsupportedOpError(
            f"indexing by a mask: {_MASKS} Received: {list(indices)}. Use torch.where, or a sum "
            "weighted by the mask."
        )
    shape = broadcast_shapes([index.shape for _, index in pairs])
    found = []
    for axis, index in pairs:
        index = low.value(index, "int64")
        if index.constant is None or (index.constant < 0).any():
            negative = b.op("less", index, b.constant(0, "int64"))
            size = counts(b, x.shape[axis], "int64")  # type: ignore[arg-type]
            index = b.op("select", negative, b.op("add", index, size), index)
        found.append(index)
    return [axis for axis, _ in pairs], found, shape


def _joined_columns(low: Lowering, columns: Sequence[Value], shape: Shape) -> Value:
    """Coordinates [*shape, K] for gather_nd and its like."""
    b, found = low.b, []
    for index in columns:
        whole = index if index.shape == shape else b.op("broadcast_to", index, shape=shape)
        found.append(reshape(b, whole, (*shape, 1)))
    return found[0] if len(found) == 1 else b.op("concat", *found, axis=len(shape))


def _order(axes: Sequence[int], rank: int, span: int) -> tuple[list[int], list[int]]:
    """How axes are moved for indexing by tensors.

    Args:
        axes: are indexed.
        span: number of axes that come in their place.

    Returns:
        The permutation of x that moves the indexed axes to the front, and that of the result.
    """
    others = [axis for axis in range(rank) if axis not in axes]
    first = axes[0] if list(axes) == list(range(axes[0], axes[-1] + 1)) else 0
    moved = [*range(span, span + first), *range(span), *range(span + first, span + len(others))]
    return [*axes, *others], moved


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _index(low: Lowering, x: Value, indices: Sequence[Optional[Value]]) -> Value:
    """Axes indexed by integers: gather along one, gather_nd along several."""
    b, axes = low.b, [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    shape = broadcast_shapes([index.shape for index in given])
    places = [_counted_axis(index, x.shape[axis]) for axis, index in zip(axes, given)]
    if axes[-1] < len(axes) and None not in places and len(set(places)) == len(places):
        # Whole axes, such as mask[batch[:, None], position[None]] in transformers.
        order = sorted(range(len(places)), key=lambda axis: places[axis] or 0)
        moved = transposed(low, x, [*order, *range(len(places), x.type.rank)])
        return reshape(b, moved, (*shape, *x.shape[len(places) :]))
    axes, columns, shape = _coordinates(low, x, indices)
    if len(axes) == 1 and axes[0]:
        return b.op("gather", x, columns[0], axis=axes[0], batch_dims=0)
    before, after = _order(axes, x.type.rank, len(shape))
    found = b.op("gather_nd", transposed(low, x, before), _joined_columns(low, columns, shape))
    return transposed(low, found, after)


@lowers("index_put", "_unsafe_index_put")
def _index_put(
    low: Lowering, x: Value, indices: Sequence[Optional[Value]], values: Value, accumulate: bool
) -> Value:
    """`x[mask] = number`, for a mask of x's first axes, or `x[integers] = values`"""
    b, mask = low.b, indices[0]
    if mask is not None and mask.dtype == "bool" and len(indices) == 1:
        if mask.shape != x.shape[: mask.type.rank] or values.type.size != 1:
            raise UnsupportedOpError(
                f"assignment by a mask: {_MASKS} Received: {indices} and {values!r}. Use "
                "torch.where."
            )
        number = reshape(b, low.value(values), ())
        if accumulate:
            number = b.op("add", x, number)
        mask = reshape(b, mask, (*mask.shape, *(1,) * (x.type.rank - mask.type.rank)))
        return b.op("select", mask, number, x)
    axes, columns, shape = _coordinates(low, x, indices)
    before, after = _order(axes, x.type.rank, len(shape))
    table = transposed(low, x, before)
    updates, kept = low.value(values), table.shape[len(axes) :]
    whole = (*shape, *kept)
    moved = tuple(whole[axis] for axis in after)
    if updates.shape != moved:
        updates = b.op("broadcast_to", updates, shape=moved)
    updates = transposed(low, updates, [after.index(axis) for axis in range(len(after))])
    op = "scatter_nd_add" if accumulate else "scatter_nd_update"
    found = b.op(op, table, _joined_columns(low, columns, shape), updates)
    return transposed(low, found, [before.index(axis) for axis in range(len(before))])


def _scattered(low: Lowering, op: str, x: Value, dim: int, index: Value, src: Value) -> Value:
    """x with elements of src at positions along an axis; src may be longer than the index."""
    b, axis, shape = low.b, _axis(x, dim), index.shape
    if not x.type.rank:
        return src if op == "scatter_nd_update" else b.op("add", x, src)
    columns = []
    for other, size in enumerate(shape):
        column = counted(b, size, 1, "int64")  # type: ignore[arg-type]
        src = cut(b, src, other, 0, size)
        whole = (1,) * other + (size,) + (1,) * (len(shape) - other - 1)
        columns.append(index if other == axis else reshape(b, column, whole))
    return b.op(op, x, _joined_columns(low, columns, shape), src)


@lowers("scatter_add", "scatter.src")
def _scatter(low: Lowering, x: Value, dim: int, index: Value, src: Value) -> Value:
    op = "scatter_nd_add" if "scatter_add" in str(low.node.target) else "scatter_nd_update"
    return _scattered(low, op, x, dim, index, src)


@lowers("scatter.value")
def _scatter_value(low: Lowering, x: Value, dim: int, index: Value, value: Number) -> Value:
    src = low.b.op("broadcast_to", low.value(value), shape=index.shape)
    return _scattered(low, "scatter_nd_update", x, dim, index, src)


@lowers("gather")
def _gather(low: Lowering, x: Value, dim: int, index: Value) -> Value:
    """Along the last axis, and others after a transposition; index may be shorter elsewhere."""
    b, axis = low.b, _axis(x, dim)
    for other, size in enumerate(index.shape):
        if other != axis:
            x = cut(b, x, other, 0, size)
    order = [*(i for i in range(x.type.rank) if i != axis), axis]
    rows, columns = transposed(low, x, order), transposed(low, index, order)
    found = b.op("gather", rows, columns, axis=len(order) - 1, batch_dims=len(order) - 1)
    return transposed(low, found, [order.index(i) for i in range(len(order))])


@lowers("index_select")
def _index_select(low: Lowering, x: Value, dim: int, index: Value) -> Value:
    return low.b.op("gather", x, index, axis=_axis(x, dim), batch_dims=0)
