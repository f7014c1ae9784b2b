"""Lowering of the CTC loss. Decoders have no gradient and run in the session."""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.slicing import concatenated
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Value
from cerebras_tf.ops.slicing import cut


def _rotated(low: Lowering, x: Value, by: int) -> Value:
    """The last axis with its first `by` classes at the end; the last ones first if negative."""
    classes = x.shape[2]
    if not isinstance(classes, int):
        raise UnsupportedOpError(
            f"CTC loss: the number of classes must be known. Received: {x!r}. Set the static shape."
        )
    first = by % classes
    parts = [cut(low.b, x, 2, first, classes - first), cut(low.b, x, 2, 0, first)]
    return concatenated(low.b, parts, 2)


@lowers("CTCLoss", "CTCLossV2")
def _ctc_loss(low: Lowering, op: Operation) -> Sequence[Value]:
    """The blank is the last class; of CTCLossV2, the first one."""
    logits, indices, values, lengths = low.inputs(op)
    if op.get_attr("preprocess_collapse_repeated"):
        raise UnsupportedOpError(
            "CTC loss: preprocess_collapse_repeated must be False. Received: True. Collapse the "
            "labels in the input function with tf.nn.collapse_repeated."
        )
    attrs = {
        "merge": bool(op.get_attr("ctc_merge_repeated")),
        "skip_long": bool(op.get_attr("ignore_longer_outputs_than_inputs")),
    }
    first = op.type == "CTCLossV2"
    if first:
        logits, values = _rotated(low, logits, 1), low.b.op("sub", values, 1)
    loss, gradient = low.b.multi("ctc_loss", logits, indices, values, lengths, **attrs)
    return [loss, _rotated(low, gradient, -1) if first else gradient]
