"""Special functions: gamma, beta, error and Bessel functions, element by element with broadcasting.

Not fused with other elementwise ops: their kernels iterate until the elements have converged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Optional

from cerebras_tf.ir import Node, Value
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, no_second_derivative, of_one_output, sum_to
from cerebras_tf.ops.inference import broadcast
from cerebras_tf.ops.registry import Attrs, Types, element_flops, register

# Derivatives by the operands, given (b, operands, output); None where there is none.
_Derivatives = Callable[[Builder, Sequence[Value], Value], "list[Optional[Value]]"]
_FLOPS = 100


def _infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """op(x, ...): operands broadcast"""
    return broadcast(inputs, attrs)


def _define(name: str, derivatives: Optional[_Derivatives]) -> None:
    @of_one_output
    def vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
        assert derivatives is not None
        found = derivatives(b, node.inputs, node.output)
        return [
            None if part is None else sum_to(b, b.op("mul", dy, part), x)
            for part, x in zip(found, node.inputs)
        ]

    register(
        name,
        _infer,
        no_second_derivative if derivatives is None else vjp,
        rows=rows.elementwise,
        flops=element_flops(_FLOPS),
    )


def _of_inverse(scale: float, divisor: float) -> _Derivatives:
    """scale exp(y^2 / divisor), of an inverse error function y."""

    def derivatives(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
        return [b.op("mul", b.op("exp", b.op("mul", b.op("square", y), 1 / divisor)), scale)]

    return derivatives


def _polygamma(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
    order, x = xs
    return [None, b.op("polygamma", b.op("add", order, 1.0), x)]


def _zeta(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
    s, q = xs
    return [None, b.op("neg", b.op("mul", s, b.op("zeta", b.op("add", s, 1.0), q)))]


def _igamma(sign: float) -> _Derivatives:
    """dP(a, x)/dx = x^(a-1) e^-x / Gamma(a); Q = 1 - P (DLMF 8.2.4, 8.2.5)."""

    def derivatives(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
        a, x = xs
        power = b.op("mul", b.op("sub", a, 1.0), b.op("log", x))
        density = b.op("exp", b.op("sub", b.op("sub", power, x), b.op("lgamma", a)))
        found = (b.op("igamma_grad_a", a, x), density)
        return [part if sign > 0 else b.op("neg", part) for part in found]

    return derivatives


def _betainc(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
    """dI_x(p, q)/dx = x^(p-1) (1-x)^(q-1) / B(p, q) (DLMF 8.17.1). None by p, q, as TensorFlow."""
    p, q, x = xs
    one = b.constant(1.0, x.dtype)
    beta = b.op("add", b.op("lgamma", p), b.op("lgamma", q))
    beta = b.op("sub", beta, b.op("lgamma", b.op("add", p, q)))
    powers = b.op("mul", b.op("sub", p, one), b.op("log", x))
    other = b.op("mul", b.op("sub", q, one), b.op("log1p", b.op("neg", x)))
    return [None, None, b.op("exp", b.op("sub", b.op("add", powers, other), beta))]


def _i0e(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
    (x,) = xs
    return [b.op("sub", b.op("bessel_i1e", x), b.op("mul", b.op("sign", x), y))]


def _i1e(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
    """i0e(x) - y (sign(x) + 1/x), and 1/2 at 0."""
    (x,) = xs
    is_zero = b.op("equal", x, 0.0)
    safe = b.op("select", is_zero, b.constant(1.0, x.dtype), x)
    factor = b.op("add", b.op("sign", x), b.op("reciprocal", safe))
    found = b.op("sub", b.op("bessel_i0e", x), b.op("mul", y, factor))
    return [b.op("select", is_zero, b.constant(0.5, x.dtype), found)]


def _k0e(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
    return [b.op("sub", y, b.op("bessel_k1e", xs[0]))]


def _k1e(b: Builder, xs: Sequence[Value], y: Value) -> list[Optional[Value]]:
    (x,) = xs
    scaled = b.op("mul", y, b.op("sub", b.constant(1.0, x.dtype), b.op("reciprocal", x)))
    return [b.op("sub", scaled, b.op("bessel_k0e", x))]


_define("lgamma", lambda b, xs, y: [b.op("digamma", xs[0])])
_define("digamma", lambda b, xs, y: [b.op("polygamma", b.constant(1.0, xs[0].dtype), xs[0])])
_define("polygamma", _polygamma)
_define("zeta", _zeta)
_define("erfinv", _of_inverse(math.sqrt(math.pi) / 2, 1.0))
_define("ndtri", _of_inverse(math.sqrt(2 * math.pi), 2.0))
_define("igamma", _igamma(1.0))
_define("igammac", _igamma(-1.0))
_define("igamma_grad_a", None)
_define("betainc", _betainc)
_define("bessel_i0e", _i0e)
_define("bessel_i1e", _i1e)
_define("bessel_k0e", _k0e)
_define("bessel_k1e", _k1e)
