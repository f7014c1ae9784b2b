"""Rotary position embedding of halves as one op.

Letters: ... leading dimensions, D width of a head, an even number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, of_one_output, sum_to
from cerebras_tf.ops.inference import broadcast_shapes, require_same_dtype
from cerebras_tf.ops.registry import Attrs, element_flops, register


def _infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """rotary(x [..., D], cos [..., D], sin [..., D]; transposed) -> y [..., D]

    y = x cos + R(x) sin with R(x) = (-x2, x1) for the halves x1 and x2 of x. With transposed, the
    transposed linear map: y = x cos - R(x sin). cos and sin have one shape, which broadcasts to
    that of x.
    """
    x, cos, sin = inputs
    require_same_dtype(inputs)
    width = x.shape[-1] if x.type.rank else None
    fits = isinstance(width, int) and width % 2 == 0 and cos.shape[-1:] == (width,)
    if not fits or cos.shape != sin.shape or broadcast_shapes([x.shape, cos.shape]) != x.shape:
        raise GraphError(
            "rotary: x must have an even last axis, and cos and sin one shape that broadcasts to "
            f"x along other axes. Received: {list(inputs)}. Expand them."
        )
    return [x.type]


@of_one_output
def _vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    x, cos, sin = node.inputs
    transposed = node.attrs["transposed"]
    dx = b.op("rotary", dy, cos, sin, transposed=not transposed)
    # y is linear in cos and sin, too. Without readers these are removed.
    width = x.type.with_shape(x.shape[-1:]).static_shape
    zero, one = (b.constant(np.full(width, value), x.dtype) for value in (0, 1))
    source, target = (dy, x) if transposed else (x, dy)
    turned = b.op("rotary", source, zero, one, transposed=False)
    dcos, dsin = b.op("mul", dy, x), b.op("mul", target, turned)
    return [dx, sum_to(b, dcos, cos), sum_to(b, dsin, sin)]


def _rows(node: Node, axes: int) -> Optional[rows.Rows]:
    """Rows of x; those of cos and sin are broadcast."""
    return rows.elementwise(node, axes) if axes < node.output.type.rank else None


# Linear in x, and in cos and sin together.
register("rotary", _infer, _vjp, rows=_rows, linear=((0,), (1, 2)), flops=element_flops(3))
