"""Plain layer norm and softmax: the formulas written out, and gradients by central differences."""

from __future__ import annotations

import math

import numpy as np

from cerebras_tf.kernels.registry import PLAIN
from tests.differences import gradient_of

RANDOM = np.random.default_rng(6)


def test_layer_norm_is_its_formula_row_by_row():
    x, gamma, beta = (RANDOM.standard_normal(shape) for shape in [(3, 7), (7,), (7,)])
    y, mean, rstd = PLAIN["layer_norm"](x, gamma, beta, epsilon=1e-3)
    for row in range(3):
        center = math.fsum(x[row]) / 7
        variance = math.fsum((v - center) ** 2 for v in x[row]) / 7
        expected = [(v - center) / math.sqrt(variance + 1e-3) for v in x[row]]
        np.testing.assert_allclose(y[row], np.array(expected) * gamma + beta, rtol=1e-12)
        np.testing.assert_allclose([mean[row], rstd[row]], [center, (variance + 1e-3) ** -0.5])


def test_layer_norm_grad_equals_central_differences():
    dy, x = RANDOM.standard_normal((2, 2, 3, 5))
    gamma, beta = RANDOM.standard_normal((2, 5))

    def loss(x, gamma, beta):
        return (PLAIN["layer_norm"](x, gamma, beta, epsilon=1e-3)[0] * dy).sum()

    _, mean, rstd = PLAIN["layer_norm"](x, gamma, beta, epsilon=1e-3)
    dx, dgamma, dbeta = PLAIN["layer_norm_grad"](dy, x, gamma, mean, rstd)
    np.testing.assert_allclose(dx, gradient_of(lambda v: loss(v, gamma, beta), x), rtol=1e-6)
    np.testing.assert_allclose(dgamma, gradient_of(lambda v: loss(x, v, beta), gamma), rtol=1e-6)
    np.testing.assert_allclose(dbeta, gradient_of(lambda v: loss(x, gamma, v), beta), rtol=1e-6)


def test_softmax_rows_sum_to_one_and_do_not_overflow():
    x = np.array([[1e4, 0.0, -1e4], [3.0, 3.0, 3.0]])
    np.testing.assert_allclose(PLAIN["softmax"](x), [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(PLAIN["log_softmax"](x)[0], [0, -1e4, -2e4])


def test_softmax_gradients_equal_central_differences():
    x, dy = RANDOM.standard_normal((2, 3, 5))
    for name in ("softmax", "log_softmax"):
        forward = PLAIN[name]
        found = PLAIN[f"{name}_grad"](dy, forward(x))
        expected = gradient_of(lambda v, f=forward: (f(v) * dy).sum(), x)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
