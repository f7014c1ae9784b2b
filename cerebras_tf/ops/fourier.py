"""Discrete Fourier transforms. A complex tensor is a pair of real ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Size, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents
from cerebras_tf.ops.registry import Attrs, Types, register
from cerebras_tf.ops.shape import zeros_like


def _lengths(x: Value, axes: Sequence[int]) -> list[int]:
    lengths = [x.shape[axis] for axis in axes]
    known = [dim for dim in lengths if isinstance(dim, int)]
    if len(known) != len(lengths):
        raise GraphError(
            f"fft: the transformed axes must have known sizes. Received: {x!r}, axes {axes}. Set "
            "the static shape."
        )
    return known


def _infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """fft(real [, imaginary]; axes, inverse) -> real and imaginary part

    The inverse divides by the number of transformed elements.
    """
    _lengths(inputs[0], attrs["axes"])
    return [inputs[0].type, inputs[0].type]


def _vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    """The conjugate transpose of the transform: the other one, without or with its division."""
    given = next((dy for dy in dys if dy is not None), None)
    if given is None:
        return [None] * len(node.inputs)
    real, imaginary = (zeros_like(b, given) if dy is None else dy for dy in dys)
    axes, inverse = node.attrs["axes"], bool(node.attrs["inverse"])
    count = math.prod(_lengths(node.inputs[0], axes))
    found = b.multi("fft", real, imaginary, axes=axes, inverse=not inverse)
    scale = 1 / count if inverse else float(count)
    return [b.op("mul", part, scale) for part in found[: len(node.inputs)]]


def _flops(node: Node) -> Size:
    """5 n log2 n for n elements."""
    count = math.prod(_lengths(node.inputs[0], node.attrs["axes"]))
    return node.inputs[0].type.size * math.ceil(5 * math.log2(max(count, 2)))


register("fft", _infer, _vjp, rows=rows.across, flops=_flops)
