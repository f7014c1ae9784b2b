"""Lowerings of TensorFlow's two-dimensional pooling.

Windows over batch or channels are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.capture.convolution import explicit_padding, from_nhwc, spatial, to_nhwc
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import integers, sizes
from cerebras_tf.ir import Shape, Value


def _geometry(low: Lowering, op: Operation, size: Shape) -> dict[str, object]:
    """Window, strides and padding; the V2 ops have the first two as their last operands."""
    if op.type.endswith("V2"):
        window = spatial(op, integers(low, op.inputs[-2], "the window"))
        strides = spatial(op, integers(low, op.inputs[-1], "strides"))
    else:
        window = spatial(op, op.get_attr("ksize"))
        strides = spatial(op, op.get_attr("strides"))
    padding = explicit_padding(op, size, window, strides, (1, 1))
    return {"window": window, "strides": strides, "padding": padding}


@lowers("AvgPool", "MaxPool", "MaxPoolV2")
def _pool(low: Lowering, op: Operation) -> Sequence[Value]:
    name = "avg_pool" if op.type == "AvgPool" else "max_pool"
    x = to_nhwc(low.b, op, low.value(op.inputs[0]))
    return [from_nhwc(low.b, op, low.b.op(name, x, **_geometry(low, op, x.shape[1:3])))]


@lowers("MaxPoolGrad", "MaxPoolGradV2", "MaxPoolGradGrad", "MaxPoolGradGradV2")
def _max_pool_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    x, y, dy = (to_nhwc(low.b, op, low.value(op.inputs[i])) for i in range(3))
    name = "max_pool_select" if "GradGrad" in op.type else "max_pool_grad"
    attrs = _geometry(low, op, x.shape[1:3])
    return [from_nhwc(low.b, op, low.b.op(name, x, y, dy, **attrs))]


@lowers("AvgPoolGrad")
def _avg_pool_grad(low: Lowering, op: Operation) -> Sequence[Value]:
    shape = sizes(low, op.inputs[0], "the shape of the image")
    dy = to_nhwc(low.b, op, low.value(op.inputs[1]))
    nhwc = [shape[i] for i in (0, 2, 3, 1)] if op.get_attr("data_format") == b"NCHW" else shape
    size = tuple(nhwc[1:3])
    attrs = _geometry(low, op, size)
    return [from_nhwc(low.b, op, low.b.op("avg_pool_grad", dy, size=size, **attrs))]
