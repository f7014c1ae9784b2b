"""Elementary functions in float32 that vectorise: no branches, tables or library calls.

Errors are at most 2.5 units in the last place; NaN, Inf, zeros and subnormal numbers give NumPy's
results. Polynomials are interpolated at Chebyshev nodes on import, so that the file contains no
unexplained constants. float64 has no fast forms.

Legend: x = n log(2) + r for exp; x = 2^n m, f = m - 1 for log; x = n pi/2 + r for sin and cos.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cerebras_tf.kernels.compiled_intrinsics import (
    bits_of,
    bits_of_double,
    double_of,
    fabs,
    float_of,
    floor,
    fused_multiply_add,
    rint,
)
from cerebras_tf.kernels.compiled_jit import inlined

F = np.float32
I = np.int32  # noqa: E741
ONE, HALF, TWO, ZERO = F(1), F(0.5), F(2), F(0)
INF, NAN = F(np.inf), F(np.nan)


def _fit(function: Callable[[float], float], low: float, high: float, degree: int) -> list[float]:
    """Coefficients, lowest first, of the polynomial through a function at Chebyshev nodes."""
    values = np.vectorize(function, otypes=[np.float64])
    interpolated = np.polynomial.Chebyshev.interpolate(values, degree, domain=[low, high])
    return [float(c) for c in interpolated.convert(kind=np.polynomial.Polynomial).coef]


def _fit32(function: Callable[[float], float], low: float, high: float, degree: int) -> list[Any]:
    return [F(c) for c in _fit(function, low, high, degree)]


def _series(terms: Callable[[int], float], x: float, count: int = 30) -> float:
    return math.fsum(terms(k) * x**k for k in range(count))


# (exp(r) - 1 - r) / r^2
E0, E1, E2, E3, E4, E5 = _fit32(
    lambda r: _series(lambda k: 1 / math.factorial(k + 2), r), -0.3466, 0.3466, 5
)
LOG2_E = F(1 / math.log(2))
LN2_HIGH = F(0.693359375)  # 9 bits: n LN2_HIGH is exact
LN2_LOW = F(math.log(2) - 0.693359375)
ROUND = F(1.5 * 2**23)  # adding it leaves the nearest integer in the low bits


@inlined
def _scale(y, n):
    """y 2^n in two factors, so that results may overflow to Inf or be subnormal."""
    half = n >> I(1)
    return y * float_of(I((half + I(127)) << I(23))) * float_of(I((n - half + I(127)) << I(23)))


@inlined
def exp(x):
    """e^x."""
    x = F(-104) if x < F(-104) else x
    x = F(89) if x > F(89) else x
    t = x * LOG2_E + ROUND
    n = t - ROUND
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = ((((E5 * r + E4) * r + E3) * r + E2) * r + E1) * r + E0
    y = (r * r) * p + r + ONE
    return _scale(y, I(bits_of(t) - bits_of(ROUND)))


@inlined
def expm1(x):
    """e^x - 1 = 2^n (e^r - 1) + (2^n - 1)."""
    x = F(-20) if x < F(-20) else x
    t = (F(88) if x > F(88) else x) * LOG2_E + ROUND
    n = t - ROUND
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = ((((E5 * r + E4) * r + E3) * r + E2) * r + E1) * r + E0
    q = (r * r) * p + r
    s = float_of(I((I(bits_of(t) - bits_of(ROUND)) + I(127)) << I(23)))
    y = q * s + (s - ONE)
    y = exp(x) if x > F(60) else y
    return x if x == ZERO else y


# (log(1 + f) - f + f^2 / 2) / f^3
L0, L1, L2, L3, L4, L5, L6, L7, L8 = _fit32(
    lambda f: _series(lambda k: (-1) ** k / (k + 3), f, 400), -0.2930, 0.4143, 8
)
LEAST_NORMAL = F(2.0**-126)
SQRT_HALF_BITS = int(np.array(math.sqrt(0.5), F).view(np.int32))


@inlined
def log(x):
    """Natural logarithm."""
    tiny = x < LEAST_NORMAL
    scaled = x * F(2.0**23) if tiny else x
    bits = bits_of(scaled) - I(SQRT_HALF_BITS)
    n = F(I(bits >> I(23)))
    n = n - F(23) if tiny else n
    f = float_of(I((bits & I(0x007FFFFF)) + I(SQRT_HALF_BITS))) - ONE
    p = ((((((L8 * f + L7) * f + L6) * f + L5) * f + L4) * f + L3) * f + L2) * f + L1
    p = p * f + L0
    s = f * f
    y = (s * f) * p + n * LN2_LOW
    y = y - HALF * s
    y = (f + y) + n * LN2_HIGH
    y = x if x == INF else y
    y = -INF if x == ZERO else y
    y = NAN if x < ZERO else y
    return x if x != x else y


@inlined
def log1p(x):
    """log(1 + x); the rounding error of 1 + x is corrected to first order."""
    u = ONE + x
    y = log(u) + (x - (u - ONE)) / u
    y = x if fabs(x) < F(2.0**-24) else y
    y = x if x == INF else y
    y = -INF if u == ZERO else y
    return x if x != x else y


# (tanh(x) / x - 1) / x^2 in s = x^2
T0, T1, T2, T3, T4 = _fit32(
    lambda s: (math.tanh(math.sqrt(s)) / math.sqrt(s) - 1) / s, 1e-6, 0.40, 4
)


@inlined
def tanh(x):
    """Odd polynomial up to 0.625, from there 1 - 2 / (e^(2|x|) + 1)."""
    a = fabs(x)
    s = x * x
    p = (((T4 * s + T3) * s + T2) * s + T1) * s + T0
    small = x * s * p + x
    large = ONE - TWO / (exp(TWO * a) + ONE)
    large = -large if x < ZERO else large
    return small if a < F(0.625) else large


@inlined
def sigmoid(x):
    """1 / (1 + e^-x), computed on the side where exp does not overflow."""
    z = exp(-fabs(x))
    return (ONE if x >= ZERO else z) / (ONE + z)


@inlined
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|)."""
    positive = x if x > ZERO else ZERO
    return positive + log1p(exp(-fabs(x)))


# erf(x) / x - 1 in s = x^2, and log(1 - erf(x)) + x in x
R0, R1, R2, R3, R4, R5, R6 = _fit32(
    lambda s: math.erf(math.sqrt(s)) / math.sqrt(s) - 1, 1e-9, 0.86, 6
)
Q0, Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8 = _fit32(lambda x: math.log(math.erfc(x)) + x, 0.92, 4.0, 8)


@inlined
def erf(x):
    """Odd polynomial up to 0.92, from there 1 - e^q(|x|)."""
    a = fabs(x)
    s = x * x
    p = ((((((R6 * s + R5) * s + R4) * s + R3) * s + R2) * s + R1) * s) + R0
    small = x * p + x
    t = F(4) if a > F(4) else a
    q = ((((Q8 * t + Q7) * t + Q6) * t + Q5) * t + Q4) * t + Q3
    q = ((q * t + Q2) * t + Q1) * t + Q0
    large = ONE - exp(q - t)
    large = -large if x < ZERO else large
    return small if a < F(0.92) else large


# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in s = r^2
S0, S1, S2, S3 = _fit32(
    lambda s: _series(lambda k: (-1) ** (k + 1) / math.factorial(2 * k + 3), s), 0, 0.62, 3
)
C0, C1, C2, C3 = _fit32(
    lambda s: _series(lambda k: (-1) ** k / math.factorial(2 * k + 4), s), 0, 0.62, 3
)
TWO_OVER_PI = 2 / math.pi
HALF_PI_HIGH = math.pi / 2
HALF_PI_LOW = 6.123233995736766e-17  # pi / 2 - HALF_PI_HIGH
ROUND64 = 1.5 * 2.0**52


@inlined
def _quadrant(x, shift):
    """sin(x + shift pi/2); arguments up to 2^50 are reduced to r exactly enough."""
    wide = np.float64(x)
    n = rint(wide * TWO_OVER_PI)
    reduced = fused_multiply_add(-n, HALF_PI_HIGH, wide)
    r = F(fused_multiply_add(-n, HALF_PI_LOW, reduced))
    k = bits_of_double(n + ROUND64) + shift
    s = r * r
    sine = (((S3 * s + S2) * s + S1) * s + S0) * s * r + r
    cosine = (((C3 * s + C2) * s + C1) * s + C0) * (s * s) + (ONE - HALF * s)
    y = cosine if (k & 1) != 0 else sine
    return -y if (k & 2) != 0 else y


@inlined
def sin(x):
    """Sine of radians."""
    return x if x == ZERO else _quadrant(x, 0)


@inlined
def cos(x):
    """Cosine of radians."""
    return _quadrant(x, 1)


# log(m) / (m - 1) style series in z = (m - 1) / (m + 1): (log(m) / z - 2) / z^2 in z^2; and 2^r.
P0, P1, P2, P3, P4, P5 = _fit(lambda s: _series(lambda k: 2 / (2 * k + 3), s, 60), 0, 0.02945, 5)
X0, X1, X2, X3, X4, X5, X6, X7, X8 = _fit(math.exp, -0.3466, 0.3466, 8)
SQRT_HALF_BITS64 = int(np.array(math.sqrt(0.5)).view(np.int64))
LN2 = math.log(2)


@inlined
def _power_of_positive(x, y):
    """exp(y log(x)) for x > 0 in float64 with about 40 good bits, rounded to float32."""
    bits = bits_of_double(x) - SQRT_HALF_BITS64
    n = np.float64(I(bits >> 52))
    m = double_of((bits & 0x000FFFFFFFFFFFFF) + SQRT_HALF_BITS64)
    z = (m - 1.0) / (m + 1.0)
    s = z * z
    p = ((((P5 * s + P4) * s + P3) * s + P2) * s + P1) * s + P0
    e = y * (n * LN2 + (z * s * p + 2.0 * z))
    e = -120.0 if e < -120.0 else e
    e = 100.0 if e > 100.0 else e
    t = rint(e * (1 / LN2))
    r = e - t * LN2
    q = ((((X8 * r + X7) * r + X6) * r + X5) * r + X4) * r + X3
    q = ((q * r + X2) * r + X1) * r + X0
    scale = double_of((bits_of_double(t + ROUND64) - bits_of_double(ROUND64) + 1023) << 52)
    return F(q * scale)


@inlined
def power(x, y):
    """x^y with the special cases of C's pow."""
    a = fabs(x)
    b = fabs(y)
    usual = _power_of_positive(np.float64(a), np.float64(y))
    edge = INF if ((a > ONE) == (y > ZERO)) else ZERO
    usual = edge if ((a == ZERO) | (a == INF) | (b == INF)) else usual
    integral = floor(y) == y
    odd = integral & (b < F(2.0**24)) & (floor(y * HALF) * TWO != y)
    negative = (bits_of(x) < I(0)) & (x == x)
    usual = -usual if (negative & odd) else usual
    usual = NAN if ((x < ZERO) & (a != INF) & (not integral)) else usual
    usual = ONE if ((a == ONE) & (b == INF)) else usual
    usual = NAN if ((x != x) | (y != y)) else usual
    return ONE if ((y == ZERO) | (x == ONE)) else usual
