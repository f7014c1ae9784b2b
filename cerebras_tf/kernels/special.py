"""Plain kernels of special functions, computed in float64.

DLMF is the NIST Digital Library of Mathematical Functions. Relative errors are a few units of
float64 for arguments of ordinary size, unless a function says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cerebras_tf.kernels.registry import plain

_MAX_TERMS = 10_000
_EPSILON = np.finfo(np.float64).eps
# Bernoulli numbers B_2, B_4, ... (DLMF 24.2.4).
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_TINY = 1e-300


def _of_floats(name: str) -> Callable[[Callable[..., np.ndarray]], None]:
    """Registers a function of float64 arrays of one shape as the plain kernel of an op."""

    def add(function: Callable[..., np.ndarray]) -> None:
        @plain(name)
        def kernel(*operands):
            wide = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in operands))
            shape = wide[0].shape
            with np.errstate(all="ignore"):
                found = function(*(x.reshape(-1) for x in wide))
            return found.reshape(shape).astype(operands[0].dtype)

    return add


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])
_math_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _is_pole(x: np.ndarray) -> np.ndarray:
    return np.asarray((x <= 0) & (x == np.floor(x)))


def _lgamma(x: np.ndarray) -> np.ndarray:
    """log |Gamma(x)|, infinite at the poles."""
    poles = _is_pole(x)
    return np.where(poles, np.inf, _math_lgamma(np.where(poles, 1.0, x)))


_of_floats("lgamma")(_lgamma)


def _digamma(x: np.ndarray) -> np.ndarray:
    """Reflection, recurrence to x >= 10, asymptotic series (DLMF 5.5.4, 5.5.2, 5.11.2).

    The error is absolute near the zeros.
    """
    reflected = x < 0
    y = np.where(reflected, 1 - x, x)
    total = np.zeros_like(y)
    for _ in range(10):
        small = y < 10
        total -= np.where(small, 1 / y, 0.0)
        y = np.where(small, y + 1, y)
    series = sum(b / (2 * k * y ** (2 * k)) for k, b in enumerate(_BERNOULLI, 1))
    found = total + np.log(y) - 0.5 / y - series
    found = np.where(reflected, found - np.pi / np.tan(np.pi * x), found)
    return np.where(_is_pole(x), np.where(x == 0, -np.inf, np.nan), found)


_of_floats("digamma")(_digamma)


def _zeta(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Hurwitz zeta by Euler and Maclaurin (DLMF 25.11.5 with ten terms); q > 0, s > 1."""
    first = sum((q + k) ** -s for k in range(10))
    end = q + 10
    found = first + end ** (1 - s) / (s - 1) + 0.5 * end**-s
    factor = s / end ** (s + 1)
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        found = found + bernoulli / math.factorial(2 * k) * factor
        factor = factor * (s + 2 * k - 1) * (s + 2 * k) / end**2
    found = np.where(s == 1, np.inf, found)
    return np.where(s < 1, np.nan, np.where(q > 0, found, np.where(_is_pole(q), np.inf, np.nan)))


_of_floats("zeta")(_zeta)


@_of_floats("polygamma")
def _polygamma(order: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(-1)^(n+1) n! zeta(n+1, x) (DLMF 25.11.12); of order 0 the digamma function."""
    n = np.where(order == 0, 1.0, order)
    sign = np.where(n % 2 == 0, -1.0, 1.0)
    found = sign * np.exp(_lgamma(n + 1)) * _zeta(n + 1, x)
    found = np.where((n != np.floor(n)) | (n < 0), np.nan, found)
    return np.where(order == 0, _digamma(x), found)


def _root_of_erfc(z: np.ndarray) -> np.ndarray:
    """y >= 0 with erfc(y) = z in (0, 1]: steps of Halley (1694) from an asymptotic start."""
    z = np.maximum(z, _TINY)
    log = -np.log(z)
    y = np.where(z > 0.1, (1 - z) * math.sqrt(math.pi) / 2, 0.0)
    y = np.where(z > 0.1, y, np.sqrt(np.maximum(log - 0.5 * np.log(np.pi * log), 0.0)))
    for _ in range(6):
        slope = -2 / math.sqrt(math.pi) * np.exp(-y * y)
        step = (_erfc(y) - z) / slope
        y = y - step / (1 + y * step)
    return y


def _signed_root(below: np.ndarray, above: np.ndarray) -> np.ndarray:
    """The root for erfc = below where that is at most 1, else minus the one for `above`."""
    return np.where(below <= 1, _root_of_erfc(below), -_root_of_erfc(np.minimum(above, 1.0)))


@_of_floats("erfinv")
def _erfinv(x: np.ndarray) -> np.ndarray:
    """Halley's steps on erf for small x, on erfc else."""
    inside = np.clip(x, -0.5, 0.5)
    y = inside * math.sqrt(math.pi) / 2
    for _ in range(5):
        step = (_erf(y) - inside) / (2 / math.sqrt(math.pi) * np.exp(-y * y))
        y = y - step / (1 + y * step)
    far = np.sign(x) * _root_of_erfc(1 - np.minimum(np.abs(x), 1))
    found = np.where(np.abs(x) <= 0.5, y, far)
    found = np.where(np.abs(x) == 1, np.copysign(np.inf, x), found)
    return np.where(np.abs(x) > 1, np.nan, found)


@_of_floats("ndtri")
def _ndtri(p: np.ndarray) -> np.ndarray:
    """Quantiles of the normal distribution: P(z) = erfc(-z / sqrt 2) / 2 (DLMF 7.20.1)."""
    inside = np.clip(p, _TINY, 1.0)
    found = -math.sqrt(2) * _signed_root(2 * inside, 2 * (1 - inside))
    found = np.where(p == 0, -np.inf, np.where(p == 1, np.inf, found))
    return np.where((p < 0) | (p > 1) | np.isnan(p), np.nan, found)


def _lower_series(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(a, x) and its derivative by a, from the series of DLMF 8.11.4; x of at most a + 1."""
    term, total = np.ones_like(a), np.ones_like(a)
    slope, slopes = np.zeros_like(a), np.zeros_like(a)
    for n in range(1, _MAX_TERMS):
        term = term * x / (a + n)
        slope = slope - 1 / (a + n)
        total, slopes = total + term, slopes + term * slope
        if np.all(np.abs(term * slope) <= _EPSILON * np.abs(total)):
            break
    front = np.exp(a * np.log(x) - x - _lgamma(a + 1))
    return front * total, front * (total * (np.log(x) - _digamma(a + 1)) + slopes)


def _upper_fraction(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q(a, x) and its derivative by a, from the continued fraction of DLMF 8.9.2.

    Evaluated as Lentz's method of Thompson and Barnett (1986), derivatives along; x above a + 1.
    """
    b, b_slope = x + 1 - a, -1.0
    c, c_slope = np.full_like(a, 1 / _TINY), np.zeros_like(a)
    d = 1 / b
    d_slope = -b_slope * d * d
    h, h_slope = d, d_slope
    for n in range(1, _MAX_TERMS):
        top, top_slope = n * (a - n), float(n)
        b = b + 2
        d_slope_in = top_slope * d + top * d_slope + b_slope
        d = 1 / (b + top * d)
        d_slope = -d_slope_in * d * d
        c_slope = b_slope + top_slope / c - top * c_slope / (c * c)
        c = b + top / c
        h_slope = h_slope * c * d + h * (c_slope * d + c * d_slope)
        h = h * c * d
        if np.all(np.abs(c * d - 1) <= _EPSILON):
            break
    front = np.exp(a * np.log(x) - x - _lgamma(a))
    return front * h, front * (h * (np.log(x) - _digamma(a)) + h_slope)


def _incomplete_gamma(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """P(a, x), Q(a, x) and the derivative of P by a."""
    valid = (a > 0) & (x >= 0)
    a, inside = np.where(valid, a, 1.0), np.where(valid, x, 1.0)
    low = inside <= a + 1
    positive = np.maximum(inside, _TINY)
    p, slope_p = _lower_series(a, np.where(low, positive, 1.0))
    q, slope_q = _upper_fraction(np.where(low, 1.0, a), np.where(low, 3.0, np.minimum(x, 1e300)))
    found = (np.where(low, p, 1 - q), np.where(low, 1 - p, q), np.where(low, slope_p, -slope_q))
    return tuple(np.where(valid, part, np.nan) for part in found)


_of_floats("igamma")(lambda a, x: _incomplete_gamma(a, x)[0])
_of_floats("igammac")(lambda a, x: _incomplete_gamma(a, x)[1])
_of_floats("igamma_grad_a")(lambda a, x: _incomplete_gamma(a, x)[2])


def _beta_fraction(p: np.ndarray, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The continued fraction of DLMF 8.17.22; it converges fast for x < (p + 1) / (p + q + 2)."""
    c, d = np.ones_like(x), np.zeros_like(x)
    h = np.ones_like(x)
    for n in range(_MAX_TERMS):
        m = n // 2
        if n == 0:
            top = np.ones_like(x)
        elif n % 2:
            top = -(p + m) * (p + q + m) / ((p + 2 * m) * (p + 2 * m + 1)) * x
        else:
            top = m * (q - m) / ((p + 2 * m - 1) * (p + 2 * m)) * x
        d = 1 / (1 + top * d)
        c = top * 1e300 if n == 0 else 1 + top / c
        h = d if n == 0 else h * c * d
        if n and np.all(np.abs(c * d - 1) <= _EPSILON):
            break
    return h


@_of_floats("betainc")
def _betainc(p: np.ndarray, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """I_x(p, q), from 1 - I_(1-x)(q, p) where that converges faster (DLMF 8.17.4)."""
    swap = x > (p + 1) / (p + q + 2)
    first, second = np.where(swap, q, p), np.where(swap, p, q)
    y = np.where(swap, 1 - x, x)
    front = first * np.log(y) + second * np.log1p(-y)
    front = np.exp(front + _lgamma(p + q) - _lgamma(p) - _lgamma(q)) / first
    found = front * _beta_fraction(first, second, y)
    found = np.where(y == 0, 0.0, found)
    found = np.where(swap, 1 - found, found)
    return np.where((p > 0) & (q > 0) & (x >= 0) & (x <= 1), found, np.nan)


def _scaled_i(order: int, x: np.ndarray) -> np.ndarray:
    """e^-x I(x), x >= 0: the power series to 30, then an asymptotic one (DLMF 10.25.2, 10.40.1)."""
    small, large = np.minimum(x, 30.0), np.maximum(x, 30.0)
    term = (small / 2) ** order
    total = term.copy()
    for k in range(1, 120):
        term = term * (small / 2) ** 2 / (k * (k + order))
        total = total + term
    part, series = np.ones_like(large), np.ones_like(large)
    for k in range(1, 20):
        part = -part * (4 * order**2 - (2 * k - 1) ** 2) / (k * 8 * large)
        series = series + part
    return np.where(x < 30, total * np.exp(-small), series / np.sqrt(2 * np.pi * large))


_of_floats("bessel_i0e")(lambda x: _scaled_i(0, np.abs(x)))
_of_floats("bessel_i1e")(lambda x: np.sign(x) * _scaled_i(1, np.abs(x)))


def _scaled_k(order: int, x: np.ndarray) -> np.ndarray:
    """e^x K(x): the integral of exp(-x (cosh t - 1)) cosh(order t) (DLMF 10.32.9), by trapezoids.

    These converge exponentially for such integrands (Trefethen and Weideman, 2014, section 5).
    """
    safe = np.where(x > 0, x, 1.0)
    end = np.arccosh(1 + 760 / safe) if order else np.arccosh(1 + 45 / safe)
    count = 800
    h = end / count
    total = np.full_like(safe, 0.5)
    for i in range(1, count + 1):
        t = i * h
        total = total + np.exp(-safe * 2 * np.sinh(t / 2) ** 2) * np.cosh(order * t)
    return np.where(x > 0, h * total, np.where(x == 0, np.inf, np.nan))


_of_floats("bessel_k0e")(lambda x: _scaled_k(0, x))
_of_floats("bessel_k1e")(lambda x: _scaled_k(1, x))
