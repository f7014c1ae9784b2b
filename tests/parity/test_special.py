"""Parity of special functions with TensorFlow, in float64, where its own rounding is small."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, uniform

pytestmark = pytest.mark.tf

POSITIVE = np.concatenate([uniform(9, low=0.05, high=3), uniform(9, low=3, high=60)])
NEGATIVE = -uniform(9, low=0.05, high=5)
BOTH_SIGNS = np.concatenate([POSITIVE, NEGATIVE])
INSIDE = uniform(20, low=-0.999, high=0.999)
SHARES = uniform(20, low=0.001, high=0.999)
ORDERS = np.array([[1.0], [2.0], [3.0]])
SHAPES = uniform(20, low=0.1, high=8)
ROWS = [
    ("lgamma", tf.math.lgamma, [POSITIVE]),
    ("digamma", tf.math.digamma, [POSITIVE]),
    ("polygamma", lambda x: tf.math.polygamma(tf.constant(ORDERS), x), [POSITIVE]),
    ("zeta", lambda x: tf.math.zeta(tf.constant(ORDERS + 0.5), x), [POSITIVE]),
    ("erfinv", tf.math.erfinv, [INSIDE]),
    ("ndtri", tf.math.ndtri, [SHARES]),
    ("igamma", tf.math.igamma, [POSITIVE[:, None], POSITIVE[None]]),
    ("igammac", tf.math.igammac, [POSITIVE[:, None], POSITIVE[None]]),
    ("betainc", tf.math.betainc, [SHAPES, SHAPES[::-1], SHARES]),
    *((f"bessel_{f}", getattr(tf.math, f"bessel_{f}"), [BOTH_SIGNS]) for f in ("i0e", "i1e")),
    *(
        (f"bessel_{f}", getattr(tf.math.special, f"bessel_{f}"), [POSITIVE])
        for f in ("i0", "i1", "k0", "k1", "k0e", "k1e")
    ),
]


@pytest.mark.parametrize(("name", "function", "inputs"), ROWS, ids=[row[0] for row in ROWS])
def test_special_function_agrees_with_tensorflow(name, function, inputs):
    operands = [np.asarray(x, np.float64) for x in inputs]
    check_parity(lambda xs: function(*xs), operands, "float64")


def test_gamma_functions_of_negative_numbers_and_of_ends_agree_with_tensorflow():
    def build(x):
        ends = tf.constant([-1.0, 0.0, 1.0], tf.float64)
        functions = tf.math.lgamma(x[0]), tf.math.digamma(x[0])
        return [*functions, tf.math.lgamma(ends), tf.math.erfinv(ends), tf.math.ndtri(ends)]

    check_parity(build, [np.asarray(NEGATIVE, np.float64)], "float64", gradient=False)
