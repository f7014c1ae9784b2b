"""Lowerings of softmax cross-entropy.

Joining it with the projection that makes the logits is left to a pass, which sees both.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.ir import Value


@lowers("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_softmax_xent(low: Lowering, op: Operation) -> Sequence[Value]:
    """Loss, and its gradient by the logits (pruned where nothing reads it)."""
    b = low.b
    logits, labels = low.inputs(op)
    loss, lse = b.multi("sparse_softmax_xent", logits, labels)
    ones = b.op("cast", b.op("equal", labels, labels), dtype=logits.dtype)
    return [loss, b.op("sparse_softmax_xent_grad", ones, logits, labels, lse)]


@lowers("SoftmaxCrossEntropyWithLogits")
def _softmax_xent(low: Lowering, op: Operation) -> Sequence[Value]:
    """Loss, and its gradient by the logits (pruned where nothing reads it)."""
    b = low.b
    logits, labels = low.inputs(op)
    if labels.shape != logits.shape:
        zeros = b.op("sub", logits, logits)
        labels = b.op("add", labels, b.op("stop_gradient", zeros))
    return [b.op("softmax_xent", logits, labels), b.op("sub", b.op("softmax", logits), labels)]
