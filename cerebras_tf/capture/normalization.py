"""Lowerings of cross-entropy, fused batch norm and local response normalization.

Batch norm becomes means and elementwise ops, so its gradient follows from theirs. Layer norm has no
TensorFlow op; a pass finds it later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cerebras_tf.capture.elementwise import cast
from cerebras_tf.capture.matmul import along_channels, reduced_axes
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops import Operand
from cerebras_tf.ops.sizes import counts


def _empty(low: Lowering, dtype: str) -> Value:
    return low.b.constant(np.zeros(0), dtype)


def _normalize(low: Lowering, op: Operation, x: Value, mean: Value, variance: Value) -> Value:
    """(x - mean) / sqrt(variance + epsilon) with statistics per channel."""
    b, rank = low.b, x.type.rank
    rstd = b.op("rsqrt", b.op("add", variance, float(op.get_attr("epsilon"))))
    centered = b.op("sub", x, along_channels(low, op, mean, rank))
    return b.op("mul", centered, along_channels(low, op, rstd, rank))


@lowers("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _fused_batch_norm(low: Lowering, op: Operation) -> Sequence[Value]:
    """Outputs: y, running mean and variance, then what the gradient op reads.

    In training, x is normalized by the biased variance, and the returned variance is the unbiased
    one, N / (N - 1) times as large. Statistics have no gradient, as in TensorFlow.
    """
    b = low.b
    x, scale, offset, mean, variance = low.inputs(op)
    dtype, rank = x.dtype, x.type.rank
    x = cast(low.b, x, scale.dtype)
    outputs = [mean, variance, mean, variance]
    if not op.get_attr("is_training"):
        mean, variance = b.op("stop_gradient", mean), b.op("stop_gradient", variance)
    else:
        axes = reduced_axes(op, rank)
        given = (mean, variance)
        mean = b.op("mean", x, axes=axes, keepdims=False)
        deviation = b.op("sub", x, along_channels(low, op, mean, rank))
        variance = b.op("mean", b.op("square", deviation), axes=axes, keepdims=False)
        statistics = [b.op("stop_gradient", mean), b.op("stop_gradient", variance)]
        unbiased = b.op("mul", statistics[1], _unbiasing(low, x, axes))
        outputs = [*_running(low, op, given, [statistics[0], unbiased]), *statistics]
    y = b.op("mul", _normalize(low, op, x, mean, variance), along_channels(low, op, scale, rank))
    y = cast(low.b, b.op("add", y, along_channels(low, op, offset, rank)), dtype)
    extra = [_empty(low, scale.dtype)] if op.type == "FusedBatchNormV3" else []
    return [y, *outputs, *extra]


def _unbiasing(low: Lowering, x: Value, axes: tuple[int, ...]) -> Operand:
    """N / (N - 1) for N elements along the axes; 1 for a single one."""
    count = x.type.with_shape(tuple(x.shape[axis] for axis in axes)).size
    if isinstance(count, int):
        return count / max(count - 1, 1)
    total = counts(low.b, count, x.dtype)
    return low.b.op("div", total, low.b.op("maximum", low.b.op("sub", total, 1.0), 1.0))


def _running(
    low: Lowering, op: Operation, given: Sequence[Value], batch: Sequence[Value]
) -> Sequence[Value]:
    """Running statistics, updated by exponential_avg_factor."""
    factor = float(op.get_attr("exponential_avg_factor"))
    if factor == 1.0:
        return batch
    return [
        low.b.op("add", low.b.op("mul", old, 1.0 - factor), low.b.op("mul", new, factor))
        for old, new in zip(given, batch)
    ]


@lowers("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def _fused_batch_norm_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    """With z the normalized x: dscale = sum(dy z), doffset = sum(dy), and in training
    dx = scale rstd (dy - mean(dy) - z mean(dy z)); else dx = scale rstd dy.
    """
    b = low.b
    dy, x, scale, mean, variance = low.inputs(op)[:5]
    dtype, rank, axes = x.dtype, x.type.rank, reduced_axes(op, x.type.rank)
    dy, x = cast(low.b, dy, scale.dtype), cast(low.b, x, scale.dtype)
    z = _normalize(low, op, x, mean, variance)
    product = b.op("mul", dy, z)
    dscale = b.op("sum", product, axes=axes, keepdims=False)
    doffset = b.op("sum", dy, axes=axes, keepdims=False)
    dx = dy
    if op.get_attr("is_training"):
        dx = b.op("sub", dx, b.op("mean", dy, axes=axes, keepdims=True))
        dx = b.op("sub", dx, b.op("mul", z, b.op("mean", product, axes=axes, keepdims=True)))
    rstd = b.op("rsqrt", b.op("add", variance, float(op.get_attr("epsilon"))))
    dx = b.op("mul", dx, along_channels(low, op, b.op("mul", scale, rstd), rank))
    empty = _empty(low, scale.dtype)
    return [cast(low.b, dx, dtype), dscale, doffset, empty, empty]


@lowers("LRN")
def _local_response_normalization(low: Lowering, op: Operation) -> Sequence[Value]:
    """x / (bias + alpha sum of x^2 over neighbouring channels)^beta.

    Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks, 2012,
    section 3.3. The sum over channels is a product with a band matrix.
    """
    b = low.b
    (x,) = low.inputs(op)
    width = x.shape[-1]
    if not isinstance(width, int):
        raise UnsupportedOpError(
            f"LRN: the number of channels must be known. Received: {x!r}. Set the static shape."
        )
    channels = np.arange(width)
    near = np.abs(channels[:, None] - channels) <= op.get_attr("depth_radius")
    band = b.constant(near * op.get_attr("alpha"), x.dtype)
    total = b.op("matmul", b.op("square", x), band, transpose_a=False, transpose_b=False)
    scale = b.op("pow", b.op("add", total, op.get_attr("bias")), -float(op.get_attr("beta")))
    return [b.op("mul", x, scale)]


@lowers("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_softmax_xent(low: Lowering, op: Operation) -> Sequence[Value]:
    """The loss and its gradient by the logits."""
    b = low.b
    logits, labels = low.inputs(op)
    loss, lse = b.multi("sparse_softmax_xent", logits, labels)
    ones = b.op("cast", b.op("equal", labels, labels), dtype=logits.dtype)
    return [loss, b.op("sparse_softmax_xent_grad", ones, logits, labels, lse)]


@lowers("SoftmaxCrossEntropyWithLogits")
def _softmax_xent(low: Lowering, op: Operation) -> Sequence[Value]:
    """The loss and its gradient by the logits."""
    b = low.b
    logits, labels = low.inputs(op)
    if labels.shape != logits.shape:
        zeros = b.op("sub", logits, logits)
        labels = b.op("add", labels, b.op("stop_gradient", zeros))
    return [b.op("softmax_xent", logits, labels), b.op("sub", b.op("softmax", logits), labels)]
