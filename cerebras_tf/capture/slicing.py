"""Lowerings of TensorFlow's slicing and joining ops.

The masks of StridedSlice are resolved here: what remains is slice and reshape. A start that depends
on data becomes a gather; the sizes of slices must be known or symbolic.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import constant_if_known, integers, known_numbers, sizes
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Shape, Size, Value, min_of
from cerebras_tf.ir.dimensions import ensure_at_most, is_at_most, max_of
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.inference import normalize_axes
from cerebras_tf.ops.shape import reshape
from cerebras_tf.ops.sizes import counted, counts
from cerebras_tf.ops.slicing import cut


@lowers("Slice")
def _slice(low: Lowering, op: Operation) -> Sequence[Value]:
    x, begin, _ = low.inputs(op)
    starts = known_numbers(begin)
    wanted: list[Optional[Size]] = list(sizes(low, op.inputs[2], "size"))
    for axis, start in enumerate(starts):
        dim, size = x.shape[axis], wanted[axis]
        if start is None and size == -1:
            low.static(op.inputs[1], "begin, where size is -1,")
        elif size == -1:
            wanted[axis] = None if dim is None or start is None else dim - start
        elif size is not None and (start is None or dim is None):
            x = _window_at(low.b, x, begin, axis, size)
            starts[axis] = 0
    known = tuple(0 if start is None else start for start in starts)
    result = _plain_slice(low.b, x, known, tuple(wanted), (1,) * x.type.rank)
    return [constant_if_known(low, result) if result.type.rank == 1 else result]


def _window_at(b: Builder, x: Value, begin: Value, axis: int, size: Size) -> Value:
    """`size` elements of one axis from position begin[axis]."""
    first = cut(b, begin, 0, axis, 1)
    positions = b.op("add", first, counted(b, size, 1, begin.dtype))
    return b.op("gather", x, positions, axis=axis, batch_dims=0)


def _plain_slice(
    b: Builder, x: Value, starts: tuple[Size, ...], sizes: Shape, strides: tuple[int, ...]
) -> Value:
    if x.shape == sizes and all(s == 0 for s in starts) and all(s == 1 for s in strides):
        return x
    return b.op("slice", x, starts=starts, sizes=sizes, strides=strides)


@dataclass
class _Window:
    """What a StridedSlice reads of every axis.

    Attributes:
        starts, sizes, strides: as the slice op has them, one per axis of the operand.
        dynamic_indices: axes indexed by a number that depends on data, and its index in `begin`.
        dynamic_slices: axes of a size that depends on data, and the slice of each.
    """

    starts: list[Size] = field(default_factory=list)
    sizes: list[Optional[Size]] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    shape: list[Optional[Size]] = field(default_factory=list)
    dynamic_indices: dict[int, int] = field(default_factory=dict)
    dynamic_slices: dict[int, slice] = field(default_factory=dict)


def _window(low: Lowering, op: Operation, dims: Shape, first: int) -> _Window:
    """Resolves the masks; operands `first` to `first + 2` of the op are begin, end and strides."""
    begin, end = (known_numbers(low.value(op.inputs[first + i])) for i in (0, 1))
    strides = integers(low, op.inputs[first + 2], "strides")
    masks = {
        name: int(op.get_attr(f"{name}_mask"))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    consumed = [
        i for i in range(len(begin)) if not (masks["ellipsis"] | masks["new_axis"]) >> i & 1
    ]
    window, axis = _Window(), 0

    def keep_whole(count: int) -> None:
        for dim in dims[axis : axis + count]:
            window.starts.append(0)
            window.sizes.append(dim)
            window.strides.append(1)
            window.shape.append(dim)

    for i in range(len(begin)):
        if masks["ellipsis"] >> i & 1:
            count = len(dims) - len(consumed)
            keep_whole(count)
            axis += count
        elif masks["new_axis"] >> i & 1:
            window.shape.append(1)
        elif masks["shrink_axis"] >> i & 1:
            _add_index(window, dims[axis], begin[i], axis, i)
            axis += 1
        else:
            start = None if masks["begin"] >> i & 1 else _known_end(low, op, first, begin[i])
            stop = None if masks["end"] >> i & 1 else _known_end(low, op, first + 1, end[i])
            _add_slice(window, dims[axis], slice(start, stop, strides[i]))
            axis += 1
    keep_whole(len(dims) - axis)
    return window


def _known_end(low: Lowering, op: Operation, index: int, number: Optional[Size]) -> Size:
    if number is None:
        low.static(op.inputs[index], "the end of a slice")
    return 0 if number is None else number


def _add_index(
    window: _Window, dim: Optional[Size], start: Optional[Size], axis: int, position: int
) -> None:
    if start is None or dim is None:
        window.dynamic_indices[axis] = position
        start = 0
    else:
        start = _resolve_index(dim, start)
    window.starts.append(start)
    window.sizes.append(1)
    window.strides.append(1)


def _add_slice(window: _Window, dim: Optional[Size], span: slice) -> None:
    size: Optional[Size] = None
    start: Size = 0
    stride = 1
    if dim is not None:
        start, size, stride = _resolve_slice(dim, span)
    elif span != slice(None, None, 1):
        window.dynamic_slices[len(window.sizes)] = span
    window.starts.append(start)
    window.sizes.append(size)
    window.strides.append(stride)
    window.shape.append(size)


@lowers("StridedSlice")
def _strided_slice(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    window = _window(low, op, x.shape, 1)
    for axis, position in window.dynamic_indices.items():
        x = _element_at(low, op, x, axis, position)
    for axis, span in window.dynamic_slices.items():
        x = _slice_of_unknown(low.b, x, axis, span)
    starts, strides = tuple(window.starts), tuple(window.strides)
    result = _plain_slice(low.b, x, starts, tuple(window.sizes), strides)
    return [constant_if_known(low, reshape(low.b, result, tuple(window.shape)))]


def _element_at(low: Lowering, op: Operation, x: Value, axis: int, position: int) -> Value:
    """The element at begin[position]; a negative number counts from the end."""
    index = cut(low.b, low.value(op.inputs[1]), 0, position, 1)
    size = low.b.op("cast", _size_of(low.b, x, axis), dtype=index.dtype)
    below = low.b.op("less", index, 0)
    index = low.b.op("select", below, low.b.op("add", index, size), index)
    return low.b.op("gather", x, index, axis=axis, batch_dims=0)


def _size_of(b: Builder, x: Value, axis: int) -> Value:
    """int64 scalar: size of one axis."""
    dim = x.shape[axis]
    if dim is not None:
        return counts(b, dim, "int64")
    return b.op("reshape", cut(b, b.op("shape_of", x, dtype="int64"), 0, axis, 1), shape=())


def _slice_of_unknown(b: Builder, x: Value, axis: int, span: slice) -> Value:
    """A slice of an axis of unknown size; its ends are clipped to that size."""
    if span.step <= 0:
        raise UnsupportedOpError(
            f"a slice of an axis of unknown size must go forward. Received: {span}. Use reverse."
        )
    dim = _size_of(b, x, axis)

    def end(number: Optional[int], default: Value) -> Value:
        if number is None:
            return default
        if number < 0:
            return b.op("maximum", b.op("add", dim, number), 0)
        return b.op("minimum", dim, number)

    zero, step = b.constant(0, "int64"), b.constant(span.step, "int64")
    positions = b.op("range", end(span.start, zero), end(span.stop, dim), step)
    return b.op("gather", x, positions, axis=axis, batch_dims=0)


@lowers("StridedSliceGrad")
def _strided_slice_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    shape = tuple(sizes(low, op.inputs[0], "shape"))
    window = _window(low, op, shape, 1)
    if window.dynamic_indices:
        low.static(op.inputs[1], "begin")
    dy = reshape(low.b, low.value(op.inputs[4]), tuple(window.sizes))
    starts, strides = tuple(window.starts), tuple(window.strides)
    if any(stride != 1 for stride in strides):
        return [low.b.op("place", dy, shape=shape, starts=starts, strides=strides)]
    ends = [d - s - (0 if n is None else n) for d, s, n in zip(shape, starts, window.sizes)]
    return [low.b.op("pad", dy, paddings=tuple(zip(starts, ends)), value=0)]


@lowers("Split", "SplitV")
def _split(low: Lowering, op: Operation) -> Sequence[Value]:
    axis_at, value_at = (0, 1) if op.type == "Split" else (2, 0)
    x = low.value(op.inputs[value_at])
    (axis,) = normalize_axes(integers(low, op.inputs[axis_at], "axis"), x.type.rank)
    dim = x.shape[axis]
    if dim is None:
        raise UnsupportedOpError(
            f"{op.type}: the axis that is split must have a known size. Received: {x!r}. "
            "Slice from its front instead."
        )
    if op.type == "Split":
        count = int(op.get_attr("num_split"))
        parts: list[Size] = [dim // count] * count
    else:
        parts = sizes(low, op.inputs[1], "sizes")
        rest = dim - sum(size for size in parts if size != -1)
        parts = [rest if size == -1 else size for size in parts]
    starts = itertools.accumulate([0, *parts[:-1]], operator.add)
    return [cut(low.b, x, axis, start, size) for start, size in zip(starts, parts)]


@lowers("Unpack")
def _unpack(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    (axis,) = normalize_axes(op.get_attr("axis"), x.type.rank)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    count = int(op.get_attr("num"))
    return [reshape(low.b, cut(low.b, x, axis, i, 1), shape) for i in range(count)]


@lowers("Pack")
def _pack(low: Lowering, op: Operation) -> Sequence[Value]:
    xs = low.inputs(op)
    (axis,) = normalize_axes(op.get_attr("axis"), xs[0].type.rank + 1)
    rows = [reshape(low.b, x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
    return [constant_if_known(low, concatenated(low.b, rows, axis))]


@lowers("Concat", "ConcatV2")
def _concat(low: Lowering, op: Operation) -> Sequence[Value]:
    at = 0 if op.type == "Concat" else len(op.inputs) - 1
    xs = low.inputs(op)
    del xs[at]
    (axis,) = normalize_axes(integers(low, op.inputs[at], "axis"), xs[0].type.rank)
    return [constant_if_known(low, concatenated(low.b, xs, axis))]


def concatenated(b: Builder, xs: list[Value], axis: int) -> Value:
    """The values, concatenated along an axis."""
    return xs[0] if len(xs) == 1 else b.op("concat", *xs, axis=axis)


@lowers("ConcatOffset")
def _concat_offset(low: Lowering, op: Operation) -> Sequence[Value]:
    """Start of each operand of a concatenation in the result."""
    (axis,) = integers(low, op.inputs[0], "axis")
    shapes = [sizes(low, tensor, "a shape") for tensor in op.inputs[1:]]
    offset: Size = 0
    results = []
    for shape, tensor in zip(shapes, op.inputs[1:]):
        starts: list[Size] = [0] * len(shape)
        starts[axis] = offset
        offset = offset + shape[axis]
        results.append(counts(low.b, starts, tensor.dtype.name))
    return results


@lowers("Pad", "PadV2")
def _pad(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    ends = sizes(low, op.inputs[1], "paddings")
    value = low.static(op.inputs[2], "the value").item() if op.type == "PadV2" else 0
    paddings = tuple(zip(ends[::2], ends[1::2]))
    if all(end == 0 for end in ends):
        return [x]
    return [low.b.op("pad", x, paddings=paddings, value=value)]


@lowers("MirrorPad")
def _mirror_pad(low: Lowering, op: Operation) -> Sequence[Value]:
    """REFLECT does not repeat the border, SYMMETRIC does."""
    x = low.value(op.inputs[0])
    skip = 1 if op.get_attr("mode") == b"REFLECT" else 0
    for axis, (before, after) in enumerate(low.static(op.inputs[1], "paddings").tolist()):
        dim = x.shape[axis]
        if dim is None:
            low.static(op.inputs[0], "the size of a mirrored axis")
            continue
        parts = [x]
        if before:
            head = cut(low.b, x, axis, skip, before)
            parts.insert(0, low.b.op("reverse", head, axes=(axis,)))
        if after:
            tail = cut(low.b, x, axis, dim - after - skip, after)
            parts.append(low.b.op("reverse", tail, axes=(axis,)))
        x = concatenated(low.b, parts, axis)
    return [x]


@lowers("ReverseV2")
def _reverse(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    axes = normalize_axes(integers(low, op.inputs[1], "axis"), x.type.rank)
    return [low.b.op("reverse", x, axes=axes) if axes else x]


@lowers("Roll")
def _roll(low: Lowering, op: Operation) -> Sequence[Value]:
    x = low.value(op.inputs[0])
    shifts, axes = (integers(low, tensor, "shift and axis") for tensor in op.inputs[1:])
    for shift, axis in zip(shifts, axes):
        axis %= x.type.rank
        dim = x.shape[axis]
        if dim is None:
            low.static(op.inputs[0], "the size of a rolled axis")
            continue
        last = _rolled(shift, dim)
        if last != 0:
            parts = [cut(low.b, x, axis, dim - last, last), cut(low.b, x, axis, 0, dim - last)]
            x = low.b.op("concat", *parts, axis=axis)
    return [x]


def _rolled(shift: int, dim: Size) -> Size:
    """The shift modulo the size of the axis."""
    if isinstance(dim, int):
        return shift % dim if dim else 0
    if not -dim.min <= shift <= dim.min:
        raise UnsupportedOpError(
            f"Roll: a shift must not exceed an axis of symbolic size. Received: {shift} of {dim}. "
            "Set the static shape."
        )
    return shift if shift >= 0 else dim + shift


if TYPE_CHECKING:
    Span = slice[Optional[Size], Optional[Size], int]


def _resolve_slice(dim: Size, span: Span) -> tuple[Size, Size, int]:
    """(start, number of elements, stride) of the slice `start:stop:stride` of an axis.

    Args:
        dim: size of the axis.
        span: start and stop are sizes or None; the stride is an int.

    Raises:
        UnsupportedOpError: an end is not a polynomial of the symbolic sizes.
        SizeLimitError: an end is one only for sizes up to a limit.
        GraphError: the number of elements is not a polynomial.
    """
    if all(end is None or isinstance(end, int) for end in (dim, span.start, span.stop)):
        start, stop, stride = span.indices(dim)  # type: ignore[arg-type]
        size = len(range(start, stop, stride))
        return (start if size else 0), size, stride
    if span.step == -1 and span.start is None and span.stop is None:
        return dim - 1, dim, -1
    if span.step < 0:
        raise _differs(dim, span)
    first = _position(dim, span.start, 0, span)
    last = _position(dim, span.stop, dim, span)
    if is_at_most(last, first):
        return 0, 0, 1
    if not ensure_at_most(first, last):
        raise _differs(dim, span)
    return first, -((first - last) // span.step), span.step


def _resolve_index(dim: Size, number: Size) -> Size:
    """The index of one element, counted from the front.

    Raises:
        UnsupportedOpError: the number is negative for some sizes only.
    """
    if max_of(number) < 0:
        return number + dim
    if min_of(number) < 0:
        raise _differs(dim, slice(number, number, 1))
    return number


def _position(dim: Size, end: Optional[Size], default: Size, span: Span) -> Size:
    """An end of a slice, counted from the front and clipped to [0, dim]."""
    if end is None:
        return default
    end = _resolve_index(dim, end)
    for check in (is_at_most, ensure_at_most):
        if check(end, 0):
            return 0
        if check(0, end) and check(end, dim):
            return end
        if check(dim, end):
            return dim
    raise _differs(dim, span)


def _differs(dim: Size, span: Span) -> UnsupportedOpError:
    return UnsupportedOpError(
        "the ends of a slice must have one formula for all sizes of a symbolic axis. Received: "
        f"{span.start}:{span.stop}:{span.step} of {dim}. Set the static shape."
    )


@lowers("ReverseSequence")
def _reverse_sequence(low: Lowering, op: Operation) -> Sequence[Value]:
    """The first elements of every row in reverse; how many, an operand says."""
    x, lengths = low.inputs(op)
    b, along, rows = low.b, op.get_attr("seq_dim"), op.get_attr("batch_dim")
    size = x.shape[along]
    if size is None:
        raise UnsupportedOpError(
            f"ReverseSequence: the reversed axis must have a known size. Received: {x!r}. "
            "Set its static shape."
        )
    order = [rows, along, *(axis for axis in range(x.type.rank) if axis not in (rows, along))]
    back = tuple(order.index(axis) for axis in range(x.type.rank))
    at = counted(b, size, 1, lengths.dtype)
    lengths = b.op("reshape", lengths, shape=(-1, 1))
    turned = b.op("sub", b.op("sub", lengths, 1), at)
    positions = b.op("select", b.op("less", at, lengths), turned, at)
    moved = b.op("transpose", x, permutation=tuple(order))
    found = b.op("gather", moved, positions, axis=1, batch_dims=1)
    return [b.op("transpose", found, permutation=back)]
