"""Connectionist temporal classification (Graves et al., 2006).

Letters: T steps, B sequences, C classes of which the last is the blank, N labels in all.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Size, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents
from cerebras_tf.ops.registry import Attrs, Types, register
from cerebras_tf.ops.shape import reshape


def _infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """ctc_loss(logits [T,B,C], indices [N,2], values [N], lengths [B]; merge, skip_long)
    -> loss [B], its gradient by the logits [T,B,C]
    """
    logits = inputs[0]
    if logits.type.rank != 3:
        raise GraphError(
            f"ctc_loss: logits must be [steps, sequences, classes]. Received: {logits!r}. "
            "Transpose them."
        )
    return [logits.type.with_shape((logits.shape[1],)), logits.type]


def _vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    dloss = dys[0]
    if dys[1] is not None:
        raise GraphError("ctc_loss: the gradient must not be differentiated. Stop its gradient.")
    if dloss is None:
        return [None] * 4
    column = reshape(b, dloss, (1, dloss.shape[0], 1))
    return [b.op("mul", node.outputs[1], column), None, None, None]


def _flops(node: Node) -> Size:
    return 40 * node.inputs[0].type.size


register("ctc_loss", _infer, _vjp, rows=rows.across, flops=_flops)
