"""Lowerings of patches, positions of maxima, sorted search, vector products, fake quantization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cerebras_tf.capture.elementwise import cast
from cerebras_tf.capture.image import padding_of, require_known
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.slicing import concatenated
from cerebras_tf.ir import Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.shape import reshape


def _taps(
    b: Builder,
    x: Value,
    window: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: Sequence[tuple[int, int]],
    value: float,
) -> list[Value]:
    """[N,H',W',C] of every position in a window, row by row."""
    if any(map(any, padding)):
        x = b.op("pad", x, paddings=((0, 0), *padding, (0, 0)), value=value)
    n, height, width, channels = x.shape
    counts = [
        (int(dim) - (span - 1) * rate - 1) // stride + 1  # type: ignore[arg-type]
        for dim, span, rate, stride in zip((height, width), window, rates, strides)
    ]
    return [
        b.op(
            "slice",
            x,
            starts=(0, row * rates[0], column * rates[1], 0),
            sizes=(n, *counts, channels),
            strides=(1, *strides, 1),
        )
        for row in range(window[0])
        for column in range(window[1])
    ]


@lowers("ExtractImagePatches")
def _patches(low: Lowering, op: Operation) -> Sequence[Value]:
    (x,) = low.inputs(op)
    window, strides, rates = (
        [int(number) for number in op.get_attr(name)][1:3]
        for name in ("ksizes", "strides", "rates")
    )
    size = require_known(op, x, x.shape[1:3])
    padding = padding_of(op, tuple(size), tuple(window), strides, rates)
    return [concatenated(low.b, _taps(low.b, x, window, strides, rates, padding, 0), 3)]


@lowers("MaxPoolWithArgmax")
def _pool_with_positions(low: Lowering, op: Operation) -> Sequence[Value]:
    """Positions count (row, column, channel) of the image, or of the batch."""
    b, (x,) = low.b, low.inputs(op)
    n, height, width, channels = require_known(op, x, x.shape)
    window, strides = (
        tuple(int(number) for number in op.get_attr(name)[1:3]) for name in ("ksize", "strides")
    )
    padding = tuple(padding_of(op, (height, width), window, strides, (1, 1)))
    attrs = {"window": window, "strides": strides, "padding": padding}
    pooled = b.op("max_pool", x, **attrs)
    dtype = low.tf_type(op.outputs[1]).dtype
    count = n if op.get_attr("include_batch_in_index") else 1
    numbers = np.arange(count * height * width * channels).reshape(count, height, width, channels)
    places = b.constant(np.broadcast_to(numbers, (n, height, width, channels)), dtype)
    found = b.op("max_pool_select", b.op("stop_gradient", x), pooled, places, **attrs)
    return [pooled, found]


@lowers("LowerBound", "UpperBound")
def _sorted_search(low: Lowering, op: Operation) -> Sequence[Value]:
    """How many elements of a sorted row are less than, or at most, each value of its row."""
    b, (rows, values) = low.b, low.inputs(op)
    rows = reshape(b, rows, (rows.shape[0], 1, rows.shape[1]))
    values = reshape(b, values, (*values.shape, 1))
    before = b.op("less" if op.type == "LowerBound" else "less_equal", rows, values)
    dtype = low.tf_type(op.outputs[0]).dtype
    return [b.op("sum", cast(b, before, dtype), axes=(2,), keepdims=False)]


@lowers("Cross")
def _cross(low: Lowering, op: Operation) -> Sequence[Value]:
    """The vector product along the last axis."""
    b, (x, y) = low.b, low.inputs(op)
    first, second = b.constant(np.array([1, 2, 0])), b.constant(np.array([2, 0, 1]))

    def turned(value: Value, order: Value) -> Value:
        return b.op("gather", value, order, axis=value.type.rank - 1, batch_dims=0)

    left = b.op("mul", turned(x, first), turned(y, second))
    return [b.op("sub", left, b.op("mul", turned(x, second), turned(y, first)))]


@lowers("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def _fake_quantized(low: Lowering, op: Operation) -> Sequence[Value]:
    """Rounded to steps between two ends, which are moved so that 0 is a step.

    The gradient passes inside, and goes to an end outside (Jacob et al., 2018, section 3).
    """
    b, x = low.b, low.value(op.inputs[0])
    if op.type.endswith("Args"):
        ends = [b.constant(float(op.get_attr(name)), x.dtype) for name in ("min", "max")]
    else:
        ends = [low.value(tensor) for tensor in op.inputs[1:]]
    first = 1.0 if op.get_attr("narrow_range") else 0.0
    last = float(2 ** int(op.get_attr("num_bits")) - 1)
    scale = b.op("div", b.op("sub", ends[1], ends[0]), last - first)
    zero = b.op("sub", first, b.op("div", ends[0], scale))
    zero = b.op("floor", b.op("add", b.op("minimum", b.op("maximum", zero, first), last), 0.5))
    moved = [b.op("mul", b.op("sub", number, zero), scale) for number in (first, last)]
    low_end, high_end = (
        b.op("add", end, b.op("stop_gradient", b.op("sub", to, end)))
        for end, to in zip(ends, moved)
    )
    inside = b.op("maximum", b.op("minimum", x, high_end), low_end)
    steps = b.op("floor", b.op("add", b.op("div", b.op("sub", inside, moved[0]), scale), 0.5))
    rounded = b.op("add", b.op("mul", steps, scale), moved[0])
    return [b.op("add", inside, b.op("stop_gradient", b.op("sub", rounded, inside)))]
