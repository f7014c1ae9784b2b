"""Lowerings of complex tensors as pairs of real ones, and of Fourier transforms.

Ops that move or add elements are lowered twice, once for each part. Complex variables, and complex
tensors that enter branches or functions or come from the session, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

import tensorflow as tf

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import LOWERINGS, GraphLowering
from cerebras_tf.capture.shape_arithmetic import integers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.shape import zeros_like
from cerebras_tf.ops.slicing import cut

# Real and imaginary part.
Pair = tuple[Value, Value]
ComplexRule = Callable[[GraphLowering, Operation], "Sequence[Union[Value, Pair]]"]
COMPLEX_LOWERINGS: dict[str, ComplexRule] = {}
_COMPLEX = (tf.complex64, tf.complex128)

# Linear ops whose rule treats both parts alike.
# fmt: off
_BY_PART = [
    "Add", "AddN", "AddV2", "BiasAdd", "BroadcastTo", "Concat", "ConcatV2", "Cumsum",
    "EnsureShape", "ExpandDims", "Fill", "Gather", "GatherNd", "GatherV2", "Identity",
    "MatrixBandPart", "MatrixDiag", "MatrixDiagPart", "MatrixDiagPartV3", "MatrixDiagV3",
    "Mean", "MirrorPad", "Neg", "Pack", "Pad", "Reshape", "ReverseV2", "Roll", "Select",
    "SelectV2", "Slice", "Snapshot", "Split", "SplitV", "Squeeze", "StopGradient",
    "StridedSlice", "Sub", "Sum", "Tile", "Transpose", "Unpack", "UnsortedSegmentSum",
    "ZerosLike",
]
# fmt: on


def is_complex(op: Operation) -> bool:
    """Whether an operation reads or makes complex tensors."""
    return any(tensor.dtype.base_dtype in _COMPLEX for tensor in [*op.inputs, *op.outputs])


def complex_inputs(op: Operation) -> list[Operation]:
    """The operations that make an operation's complex inputs."""
    return [tensor.op for tensor in op.inputs if tensor.dtype.base_dtype in _COMPLEX]


def _lowers(*op_types: str) -> Callable[[ComplexRule], ComplexRule]:
    def add(rule: ComplexRule) -> ComplexRule:
        COMPLEX_LOWERINGS.update(dict.fromkeys(op_types, rule))
        return rule

    return add


def multiplied(b: Builder, x: Pair, y: Pair, product: Callable[[Value, Value], Value]) -> Pair:
    """The product of two pairs, given the product of two real tensors."""
    real = b.op("sub", product(x[0], y[0]), product(x[1], y[1]))
    return real, b.op("add", product(x[0], y[1]), product(x[1], y[0]))


def _elementwise(b: Builder, x: Pair, y: Pair) -> Pair:
    return multiplied(b, x, y, lambda p, q: b.op("mul", p, q))


def _conjugate(b: Builder, x: Pair) -> Pair:
    return x[0], b.op("neg", x[1])


def _squared_size(b: Builder, x: Pair) -> Value:
    return b.op("add", b.op("square", x[0]), b.op("square", x[1]))


@_lowers(*_BY_PART)
def _by_part(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    return list(zip(*(LOWERINGS[op.type](low.part(which), op) for which in (0, 1))))


@_lowers("Shape", "ShapeN", "Size", "Rank")
def _of_shape(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    return list(LOWERINGS[op.type](low.part(0), op))


@_lowers("Const")
def _const(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    content, dtype = tf.make_ndarray(op.get_attr("value")), low.tf_type(op.outputs[0]).dtype
    return [(low.b.constant(content.real, dtype), low.b.constant(content.imag, dtype))]


@_lowers("Cast")
def _cast(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    """From real numbers: imaginary part 0. To real numbers: the real part."""
    x, target = op.inputs[0], op.outputs[0]
    dtype = low.tf_type(target).dtype
    to_complex = target.dtype.base_dtype in _COMPLEX
    parts = list(low.pair(x)) if x.dtype.base_dtype in _COMPLEX else [low.value(x)]
    found = [part if part.dtype == dtype else low.b.op("cast", part, dtype=dtype) for part in parts]
    if not to_complex:
        return found[:1]
    return [(found[0], found[1] if len(found) == 2 else zeros_like(low.b, found[0]))]


@_lowers("Complex")
def _complex(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    """Both parts broadcast."""
    real, imaginary = (low.value(tensor) for tensor in op.inputs)
    if real.shape != imaginary.shape:
        zero = low.b.op("sub", low.b.op("add", real, imaginary), imaginary)
        zero = low.b.op("stop_gradient", zeros_like(low.b, zero))
        real, imaginary = low.b.op("add", real, zero), low.b.op("add", imaginary, zero)
    return [(real, imaginary)]


@_lowers("Real", "Imag")
def _part(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    return [low.pair(op.inputs[0])[0 if op.type == "Real" else 1]]


@_lowers("Conj")
def _conj(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    return [_conjugate(low.b, low.pair(op.inputs[0]))]


@_lowers("ConjugateTranspose")
def _conjugate_transpose(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    parts = [LOWERINGS["Transpose"](low.part(which), op)[0] for which in (0, 1)]
    return [_conjugate(low.b, (parts[0], parts[1]))]


@_lowers("ComplexAbs")
def _abs(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    """With a gradient of 0 at 0."""
    b, squares = low.b, _squared_size(low.b, low.pair(op.inputs[0]))
    is_zero = b.op("equal", squares, 0.0)
    root = b.op("sqrt", b.op("select", is_zero, b.constant(1.0, squares.dtype), squares))
    return [b.op("select", is_zero, b.constant(0.0, squares.dtype), root)]


@_lowers("Angle")
def _angle(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    real, imaginary = low.pair(op.inputs[0])
    return [low.b.op("atan2", imaginary, real)]


@_lowers("Mul")
def _mul(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    return [_elementwise(low.b, low.pair(op.inputs[0]), low.pair(op.inputs[1]))]


@_lowers("Square")
def _square(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    x = low.pair(op.inputs[0])
    return [_elementwise(low.b, x, x)]


@_lowers("RealDiv", "Div", "Reciprocal", "Inv")
def _div(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    b, y = low.b, low.pair(op.inputs[-1])
    size = _squared_size(b, y)
    top = _conjugate(b, y)
    if len(op.inputs) == 2:
        top = _elementwise(b, low.pair(op.inputs[0]), top)
    return [(b.op("div", top[0], size), b.op("div", top[1], size))]


@_lowers("Exp")
def _exp(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    b, (real, angle) = low.b, low.pair(op.inputs[0])
    size = b.op("exp", real)
    return [(b.op("mul", size, b.op("cos", angle)), b.op("mul", size, b.op("sin", angle)))]


@_lowers("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    """adj_x and adj_y also conjugate; transpose_a and transpose_b do not."""
    b, plain = low.b, op.type == "MatMul"
    names = ("transpose_a", "transpose_b") if plain else ("adj_x", "adj_y")
    turns = [bool(op.get_attr(name)) for name in names]
    x, y = (
        _conjugate(b, pair) if turn and not plain else pair
        for pair, turn in zip(map(low.pair, op.inputs), turns)
    )

    def product(p: Value, q: Value) -> Value:
        return b.op("matmul", p, q, transpose_a=turns[0], transpose_b=turns[1])

    return [multiplied(b, x, y, product)]


@_lowers("Einsum")
def _einsum(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    if len(op.inputs) != 2:
        return _by_part(low, op)

    def product(p: Value, q: Value) -> Value:
        return LOWERINGS["Einsum"](low.given([p, q]), op)[0]

    return [multiplied(low.b, low.pair(op.inputs[0]), low.pair(op.inputs[1]), product)]


def _transformed(b: Builder, x: Sequence[Value], axes: Sequence[int], inverse: bool) -> Pair:
    rank = x[0].type.rank
    numbers = tuple(axis % rank for axis in axes)
    real, imaginary = b.multi("fft", *x, axes=numbers, inverse=inverse)
    return real, imaginary


def _axes(op: Operation) -> tuple[int, ...]:
    """The last axis, or the last two or three."""
    count = next((number for number in (2, 3) if f"{number}D" in op.type), 1)
    return tuple(range(-count, 0))


@_lowers("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
def _fft(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    inverse = op.type.startswith("I")
    return [_transformed(low.b, low.pair(op.inputs[0]), _axes(op), inverse)]


def _resized(b: Builder, x: Value, axis: int, size: int) -> Value:
    """x cut, or padded with zeros at the end, to a size along an axis."""
    axis %= x.type.rank
    dim = x.shape[axis]
    if not isinstance(dim, int):
        raise UnsupportedOpError(
            f"FFT: transformed axes must have known sizes. Received: {x!r}. Set the static shape."
        )
    if dim >= size:
        return cut(b, x, axis, 0, size)
    paddings = tuple((0, size - dim if i == axis else 0) for i in range(x.type.rank))
    return b.op("pad", x, paddings=paddings, value=0)


@_lowers("RFFT", "RFFT2D", "RFFT3D")
def _rfft(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    """The half of the transform of real numbers that determines the other half."""
    x, axes = low.value(op.inputs[0]), _axes(op)
    lengths = integers(low, op.inputs[1], "fft_length")
    for axis, length in zip(axes, lengths):
        x = _resized(low.b, x, axis, length)
    real, imaginary = _transformed(low.b, [x], axes, inverse=False)
    half = lengths[-1] // 2 + 1
    return [(_resized(low.b, real, -1, half), _resized(low.b, imaginary, -1, half))]


@_lowers("IRFFT", "IRFFT2D", "IRFFT3D")
def _irfft(low: GraphLowering, op: Operation) -> Sequence[Union[Value, Pair]]:
    """The other axes first, then the last one, whose other half is the conjugate in reverse."""
    b, x, axes = low.b, low.pair(op.inputs[0]), _axes(op)
    lengths = integers(low, op.inputs[1], "fft_length")
    sizes = [*lengths[:-1], lengths[-1] // 2 + 1]
    for axis, size in zip(axes, sizes):
        x = _resized(b, x[0], axis, size), _resized(b, x[1], axis, size)
    if len(axes) > 1:
        x = _transformed(b, x, axes[:-1], inverse=True)
    last, count = x[0].type.rank - 1, lengths[-1] - sizes[-1]

    def whole(part: Value, sign: float) -> Value:
        if count == 0:
            return part
        other = b.op("reverse", cut(b, part, last, 1, count), axes=(last,))
        return b.op("concat", part, other if sign > 0 else b.op("neg", other), axis=last)

    return [_transformed(b, (whole(x[0], 1), whole(x[1], -1)), (-1,), inverse=True)[0]]
