"""Ops that normalise over the last axis: layer norm, RMS norm, softmax, log softmax, and their
gradients.

Letters: ... leading dimensions, H width.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, TensorType, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, no_second_derivative
from cerebras_tf.ops.inference import require_same_dtype, same_as_first
from cerebras_tf.ops.registry import Attrs, element_flops, register


def _check_width(name: str, inputs: Sequence[Value], vectors: Sequence[Value]) -> None:
    """The vectors must be as long as the last axis of the first operand."""
    width = inputs[0].shape[-1]
    for value in vectors:
        if value.type.rank != 1 or None not in (width, value.shape[0]) and value.shape[0] != width:
            raise GraphError(
                f"{name}: gamma and beta must have the shape [{width}] of the last axis. "
                f"Received: {list(inputs)}. Reshape them."
            )


def _layer_norm_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """layer_norm(x [..., H], gamma [H], beta [H]; epsilon) -> y [..., H], mean [...], rstd [...]

    y = (x - mean) rstd gamma + beta with rstd = 1 / sqrt(variance + epsilon).
    """
    x = inputs[0]
    require_same_dtype(inputs)
    _check_width("layer_norm", inputs, inputs[1:])
    statistics = x.type.with_shape(x.shape[:-1])
    return [x.type, statistics, statistics]


def _layer_norm_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    x, gamma, _ = node.inputs
    _, mean, rstd = node.outputs
    if dys[1] is not None or dys[2] is not None:
        raise GraphError(
            "layer_norm: only its first output may be differentiated. "
            f"Received: a cotangent for mean or rstd of {node!r}. Compute them with mean()."
        )
    if dys[0] is None:
        return [None, None, None]
    return list(b.multi("layer_norm_grad", dys[0], x, gamma, mean, rstd))


def _layer_norm_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """layer_norm_grad(dy [..., H], x [..., H], gamma [H], mean [...], rstd [...])
    -> dx [..., H], dgamma [H], dbeta [H]
    """
    _, x, gamma, _, _ = inputs
    require_same_dtype(inputs)
    _check_width("layer_norm", inputs[1:], [gamma])
    return [x.type, gamma.type, gamma.type]


register(
    "layer_norm",
    _layer_norm_infer,
    _layer_norm_vjp,
    rows=rows.leading(0, outputs=(0, 1, 2)),
    flops=element_flops(8),
)
register(
    "layer_norm_grad",
    _layer_norm_grad_infer,
    no_second_derivative,
    rows=rows.leading(0, 1, 3, 4, sums=(1, 2)),
    flops=element_flops(14),
)


def _rms_norm_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """rms_norm(x [..., H], gamma [H]; epsilon [, dtype]) -> y [..., H], rstd [...]

    y = x rstd gamma with rstd = 1 / sqrt(mean(x^2) + epsilon). y has the dtype of x, or is rounded
    to the given one.
    """
    x = inputs[0]
    require_same_dtype(inputs)
    _check_width("rms_norm", inputs, inputs[1:])
    y = x.type.with_dtype(attrs.get("dtype", x.dtype))
    return [y, x.type.with_shape(x.shape[:-1])]


def _rms_norm_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    if dys[1] is not None:
        raise GraphError(
            "rms_norm: only its first output may be differentiated. "
            f"Received: a cotangent for rstd of {node!r}. Compute it with mean()."
        )
    if dys[0] is None:
        return [None, None]
    return list(b.multi("rms_norm_grad", dys[0], *node.inputs, node.outputs[1]))


def _rms_norm_grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """rms_norm_grad(dy [..., H], x [..., H], gamma [H], rstd [...] [, other [..., H]])
    -> dx [..., H], dgamma [H]

    other, a cotangent of x by another path, is added to dx.
    """
    _, x, gamma, *_ = inputs
    require_same_dtype(inputs)
    _check_width("rms_norm", inputs[1:], [gamma])
    return [x.type, gamma.type]


register(
    "rms_norm",
    _rms_norm_infer,
    _rms_norm_vjp,
    rows=rows.leading(0, outputs=(0, 1)),
    flops=element_flops(5),
    rounds=True,
)
register(
    "rms_norm_grad",
    _rms_norm_grad_infer,
    no_second_derivative,
    rows=rows.leading(0, 1, 3, 4, sums=(1,)),
    flops=element_flops(10),
)


def _softmax_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    dy = dys[0]
    return [None if dy is None else b.op(f"{node.op}_grad", dy, node.output)]


def _grad_infer(inputs: Sequence[Value], attrs: Attrs) -> list[TensorType]:
    """softmax_grad(dy, y) and log_softmax_grad(dy, y), both [..., H] -> dx [..., H]"""
    require_same_dtype(inputs)
    return [inputs[1].type]


# softmax(x [..., H]) -> [..., H]; softmax_grad: dx = y (dy - sum(dy y))
# log_softmax(x [..., H]) -> [..., H]; log_softmax_grad: dx = dy - exp(y) sum(dy)
for _name in ("softmax", "log_softmax"):
    register(_name, same_as_first, _softmax_vjp, rows=rows.leading(0), flops=element_flops(14))
    register(
        f"{_name}_grad",
        _grad_infer,
        no_second_derivative,
        rows=rows.leading(0, 1),
        flops=element_flops(14 if "log" in _name else 4),
    )
