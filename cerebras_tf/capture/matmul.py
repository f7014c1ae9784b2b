"""Lowerings of matrix products and bias additions.

Einsum stands in einsum.py, which ends in the same op.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.ir import Value

# Attribute names of the op types' two transposes; for real numbers an adjoint is a transpose.
_TRANSPOSES = {
    "MatMul": ("transpose_a", "transpose_b"),
    "SparseMatMul": ("transpose_a", "transpose_b"),
    "BatchMatMul": ("adj_x", "adj_y"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "BatchMatMulV3": ("adj_x", "adj_y"),
}


@lowers(*_TRANSPOSES)
def _matmul(low: Lowering, op: Operation) -> Sequence[Value]:
    first, second = (bool(op.get_attr(name)) for name in _TRANSPOSES[op.type])
    dtype = low.tf_type(op.outputs[0]).dtype
    a, b = (x if x.dtype == dtype else low.b.op("cast", x, dtype=dtype) for x in low.inputs(op))
    return [low.b.op("matmul", a, b, transpose_a=first, transpose_b=second)]


def channels_last(op: Operation) -> bool:
    """Whether the last axis holds the channels (NHWC, NDHWC), rather than the second (NCHW)."""
    return bool(op.get_attr("data_format").decode().endswith("C"))


def along_channels(low: Lowering, op: Operation, vector: Value, rank: int) -> Value:
    """A vector with one entry a channel, shaped to broadcast against an image batch."""
    if channels_last(op):
        return vector
    return low.b.op("reshape", vector, shape=(vector.type.size,) + (1,) * (rank - 2))


@lowers("BiasAdd")
def _bias_add(low: Lowering, op: Operation) -> Sequence[Value]:
    x, bias = low.inputs(op)
    return [low.b.op("add", x, along_channels(low, op, bias, x.type.rank))]


@lowers("BiasAddV1")
def _bias_add_v1(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op("add", *low.inputs(op))]


@lowers("BiasAddGrad")
def _bias_add_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    (dy,) = low.inputs(op)
    channel = dy.type.rank - 1 if channels_last(op) else 1
    axes = tuple(axis for axis in range(dy.type.rank) if axis != channel)
    return [low.b.op("sum", dy, axes=axes, keepdims=False)]
