"""Rules of loss functions. Letters: N rows, C classes."""

from __future__ import annotations

from typing import Optional

from cerebras_tf.capture_torch.lowering import Lowering
from cerebras_tf.capture_torch.registry import lowers
from cerebras_tf.capture_torch.shapes import transposed
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops.shape import reshape

# The numbers by which ops are given reduction="none", "mean" and "sum".
_NONE, _MEAN, _SUM = 0, 1, 2


def _total(low: Lowering, x: Value) -> Value:
    return low.b.op("sum", x, axes=tuple(range(x.type.rank)), keepdims=False)


def _reduced(low: Lowering, loss: Value, reduction: int) -> Value:
    if reduction == _NONE:
        return loss if loss.shape == low.shape else reshape(low.b, loss, low.shape)
    if reduction == _SUM:
        return _total(low, loss)
    return low.b.op("mean", loss, axes=tuple(range(loss.type.rank)), keepdims=False)


def _rows(low: Lowering, x: Value) -> Value:
    """[C] or [N, C, d1, ...] as [rows, C]."""
    if x.type.rank == 1:
        return reshape(low.b, x, (1, x.shape[0]))
    if x.type.rank > 2:
        x = transposed(low, x, (0, *range(2, x.type.rank), 1))
        return reshape(low.b, x, (None, x.shape[-1]))
    return x


class _Labels:
    """Class labels, of which some are ignored.

    Attributes:
        safe: [N], with 0 in place of ignored labels.
        weights: float [N], the weights of the rows; 0 for ignored ones.
    """

    def __init__(
        self, low: Lowering, target: Value, weight: Optional[Value], ignored: int, dtype: str
    ) -> None:
        b = low.b
        labels = target if target.type.rank == 1 else reshape(b, target, (None,))
        kept = b.op("not_equal", labels, b.constant(ignored, labels.dtype))
        self.safe = b.op("select", kept, labels, b.constant(0, labels.dtype))
        self.weights = b.op("cast", kept, dtype=dtype)
        if weight is not None:
            of_rows = b.op("gather", weight, self.safe, axis=0, batch_dims=0)
            self.weights = b.op("mul", of_rows, self.weights)


def _weighted(low: Lowering, loss: Value, weights: Value, reduction: int) -> Value:
    """`loss` is multiplied by the weights already, whose sum the mean divides by.

    In training, that is the mean weight sum of all wafers or micro-batches, so that every row of
    the global batch counts alike.
    """
    if reduction != _MEAN:
        return _reduced(low, loss, reduction)
    total, count = _total(low, loss), _total(low, weights)
    if low.trains:
        wafers = low.b.op("wafer_sum", low.b.constant(1.0, loss.dtype))
        total, count = low.b.op("mul", total, wafers), low.b.op("wafer_sum", count)
    return low.b.op("div", total, count)


@lowers("cross_entropy_loss")
def _cross_entropy(
    low: Lowering,
    x: Value,
    target: Value,
    weight: Optional[Value],
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Value:
    b, logits = low.b, _rows(low, x)
    if target.type.is_floating:
        return _soft_cross_entropy(low, logits, target, weight, reduction, label_smoothing)
    labels = _Labels(low, target, weight, ignore_index, x.dtype)
    loss = b.multi("sparse_softmax_xent", logits, labels.safe)[0]
    found = _weighted(low, b.op("mul", loss, labels.weights), labels.weights, reduction)
    if not label_smoothing:
        return found
    logs = b.op("neg", b.op("log_softmax", logits))
    if weight is not None:
        logs = b.op("mul", logs, weight)
    kept = _Labels(low, target, None, ignore_index, x.dtype).weights
    smooth = b.op("mul", b.op("sum", logs, axes=(1,), keepdims=False), kept)
    smooth = _weighted(low, smooth, labels.weights, reduction)
    classes = logits.shape[1]
    if not isinstance(classes, int):
        raise UnsupportedOpError(
            f"label_smoothing: the number of classes must be fixed. Received: {classes}."
        )
    share = b.op("mul", smooth, label_smoothing / classes)
    return b.op("add", b.op("mul", found, 1 - label_smoothing), share)


def _soft_cross_entropy(
    low: Lowering,
    logits: Value,
    target: Value,
    weight: Optional[Value],
    reduction: int,
    smoothing: float,
) -> Value:
    """Targets are probabilities of the classes; the mean is over rows."""
    b, wanted, classes = low.b, _rows(low, target), logits.shape[1]
    if smoothing and isinstance(classes, int):
        wanted = b.op("add", b.op("mul", wanted, 1 - smoothing), smoothing / classes)
    product = b.op("mul", b.op("neg", b.op("log_softmax", logits)), wanted)
    if weight is not None:
        product = b.op("mul", product, weight)
    return _reduced(low, b.op("sum", product, axes=(1,), keepdims=False), reduction)


@lowers("nll_loss_nd", "nll_loss")
def _nll_loss(
    low: Lowering,
    x: Value,
    target: Value,
    weight: Optional[Value],
    reduction: int,
    ignore_index: int,
) -> Value:
    b, logs = low.b, _rows(low, x)
    labels = _Labels(low, target, weight, ignore_index, x.dtype)
    column = reshape(b, labels.safe, (*labels.safe.shape, 1))
    picked = reshape(b, b.op("gather", logs, column, axis=1, batch_dims=1), labels.safe.shape)
    loss = b.op("mul", b.op("neg", picked), labels.weights)
    return _weighted(low, loss, labels.weights, reduction)


@lowers("mse_loss")
def _mse_loss(low: Lowering, x: Value, target: Value, reduction: int) -> Value:
    return _reduced(low, low.b.op("squared_difference", x, low.value(target)), reduction)


@lowers("l1_loss")
def _l1_loss(low: Lowering, x: Value, target: Value, reduction: int) -> Value:
    return _reduced(low, low.b.op("abs", low.b.op("sub", x, low.value(target))), reduction)


@lowers("binary_cross_entropy_with_logits")
def _bce_with_logits(
    low: Lowering,
    x: Value,
    target: Value,
    weight: Optional[Value],
    pos_weight: Optional[Value],
    reduction: int,
) -> Value:
    """(1 - t) x + (1 + (p - 1) t) softplus(-x)"""
    b, wanted = low.b, low.value(target)
    softplus = b.op("softplus", b.op("neg", x))
    if pos_weight is not None:
        scale = b.op("mul", b.op("sub", pos_weight, 1.0), wanted)
        softplus = b.op("mul", b.op("add", scale, 1.0), softplus)
    one = b.constant(1.0, wanted.dtype)
    loss = b.op("add", b.op("mul", b.op("sub", one, wanted), x), softplus)
    return _reduced(low, loss if weight is None else b.op("mul", loss, weight), reduction)
