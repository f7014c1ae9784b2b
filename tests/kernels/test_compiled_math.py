"""Vectorised float32 functions against NumPy in float64: dense sweeps and special values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.kernels import compiled_math
from cerebras_tf.kernels.compiled_jit import jit

TINY = 2.0**-126
EXACT = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}


def _sweep():
    """Every exponent and sign, the range where functions bend, and the special values."""
    bits = np.linspace(-(2**31), 2**31 - 1, 1 << 18).astype(np.int64).astype(np.int32)
    random = np.random.default_rng(0)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 88.72, 88.73, -103.9]
    chunks = [bits.view(np.float32), random.standard_normal(1 << 17) * 3, random.random(1 << 16)]
    return np.concatenate([*chunks, special]).astype(np.float32)


def _apply(name, *arrays):
    function = getattr(compiled_math, name)
    if len(arrays) == 1:

        @jit(cache=False)
        def loop(x, out):
            for i in range(x.size):
                out[i] = function(x[i])

    else:

        @jit(cache=False)
        def loop(x, y, out):
            for i in range(x.size):
                out[i] = function(x[i], y[i])

    out = np.empty_like(arrays[0])
    loop(*arrays, out)
    return out


def _check(found, exact, inputs):
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        usual = np.isfinite(rounded) & (np.abs(exact) > TINY)
        error = np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(rounded))
    worst = np.argmax(np.where(usual, error, 0))
    assert error[worst] <= 2.5, (inputs[worst], found[worst], exact[worst])
    denormal = np.isfinite(rounded) & ~usual
    assert np.abs(found[denormal] - exact[denormal]).max(initial=0) <= 3e-45
    np.testing.assert_array_equal(found[~np.isfinite(rounded)], rounded[~np.isfinite(rounded)])


@pytest.mark.parametrize("name", sorted(EXACT))
def test_function_is_within_two_and_a_half_units_everywhere(name):
    x = _sweep()
    if name in ("sin", "cos"):  # beyond, a float32 no longer says where on the circle it lies
        x = x[~(np.abs(x) > 2.0**45)]
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
    _check(_apply(name, x), exact, x)


def test_power_is_within_two_and_a_half_units_and_knows_the_special_cases():
    random = np.random.default_rng(1)
    special = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 3, 0.5, -0.5, 1e-45, 1e30, 2**25], "f"
    )
    bases, exponents = (grid.ravel() for grid in np.meshgrid(special, special))
    x = np.concatenate([np.exp(random.standard_normal(1 << 16) * 4).astype("f"), bases])
    y = np.concatenate([(random.standard_normal(1 << 16) * 8).astype("f"), exponents])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    _check(_apply("power", x, y), exact, list(zip(x, y)))
