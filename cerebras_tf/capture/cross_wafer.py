"""Sums over wafers, for losses that divide by a count of their batch.

In TensorFlow's graph such a sum is an identity with a marker attribute, so it changes nothing on
the host, in an exported graph and on one wafer.
"""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.tf_compat.internals import record

# Attributes that begin with an underscore may be put on any operation.
_MARK = "_cerebras_tf_cross_wafer_sum"
_GRADIENT = "CerebrasTfCrossWaferSum"


def cross_wafer_sum(x: Tensor, name: Optional[str] = None) -> Tensor:
    """Sums a tensor over all wafers of a training.

    With `num_csx` wafers, gradients are the mean of the wafers' gradients. If a loss divides by a
    count of its own batch (tokens, masked words), the mean over wafers is not the mean over all
    tokens. This loss is:

        loss = cross_wafer_sum(sum_of_costs) / cross_wafer_sum(number_of_tokens)

    Gradients flow through it as through a sum over the batches of all wafers.

    Args:
        x: numeric tensor of any shape. Keep it small: the step waits for the sum.
        name: name of the operation.

    Returns:
        A tensor of the shape and dtype of x. It equals x on one wafer, in evaluation and
        prediction, on the host, and in an exported graph.
    """
    if tf.executing_eagerly():
        eager: Tensor = tf.identity(x, name)
        return eager
    x = tf.convert_to_tensor(x)
    with record.stop_recording():
        result: Tensor = tf.identity(x, name or "cross_wafer_sum")
    # Private API of TensorFlow: there is no public way to put an attribute on an operation.
    result.op._set_attr(_MARK, tf.compat.v1.AttrValue(b=True))  # type: ignore[attr-defined]
    result.op._set_attr(  # type: ignore[attr-defined]
        "_gradient_op_type", tf.compat.v1.AttrValue(s=_GRADIENT.encode())
    )
    record.record_operation(_GRADIENT, [result], [x], lambda dy: [cross_wafer_sum(dy)])
    return result


def _gradient(op: Operation, dy: Tensor) -> Tensor:
    """The losses of all wafers depend on the x of each."""
    return cross_wafer_sum(dy)


tf.RegisterGradient(_GRADIENT)(_gradient)


def is_cross_wafer_sum(op: Operation) -> bool:
    """Whether an operation is one that cross_wafer_sum made."""
    return _MARK in op.node_def.attr
