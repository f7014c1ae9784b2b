"""Optimizer steps that draw weights towards 0, built without TensorFlow, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ops import optimizer_shrinking as shrinking
from cerebras_tf.ops.expression import Expression
from tests.graphs import graph_of, run_plain

VAR = np.array([0.3, -0.2, 1.5, -0.04], np.float32)
GRAD = np.array([0.5, -0.25, 1.0, 0.1], np.float32)


def moved(formula, arrays, **rates):
    """New value of `var`; arrays are float32 vectors by the names of the formula's parameters."""

    def build(b, *inputs):
        given = {name: Expression(b, value) for name, value in zip(arrays, inputs)}
        return formula(**given, **rates)["var"].value

    graph = graph_of(build, *["float32[4]"] * len(arrays))
    return run_plain(graph, list(arrays.values()))[0]


def test_a_proximal_step_sets_small_weights_to_exactly_zero():
    given = {"var": VAR, "grad": GRAD}
    ours = moved(shrinking.proximal_gradient_descent, given, lr=0.1, l1=1.0, l2=2.0)
    step = VAR - 0.1 * GRAD
    wanted = np.sign(step) * np.maximum(abs(step) - 0.1, 0) / 1.2
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    assert ours[3] == 0 and np.count_nonzero(ours) == 3


def test_proximal_adagrad_shrinks_by_the_rate_of_every_element():
    accum = np.array([0.1, 0.4, 2.0, 30.0], np.float32)
    given = {"var": VAR, "accum": accum, "grad": GRAD}
    ours = moved(shrinking.proximal_adagrad, given, lr=0.1, l1=0.2, l2=2.0)
    rate = 0.1 / np.sqrt(accum + GRAD**2)
    step = VAR - rate * GRAD
    wanted = np.sign(step) * np.maximum(abs(step) - rate * 0.2, 0) / (1 + rate * 2.0)
    np.testing.assert_allclose(ours, wanted, rtol=2e-6)


@pytest.mark.parametrize("multiplied", [False, True])
def test_ftrl_gives_zero_where_no_gradient_has_come_yet(multiplied):
    """There numerator and denominator are 0."""
    zeros = np.zeros_like(VAR)
    given = {"var": VAR, "accum": zeros, "linear": zeros, "grad": zeros}
    rates = {"lr": 0.1, "l1": 0.0, "l2": 0.0, "lr_power": -0.5}
    ours = moved(shrinking.ftrl, given, **rates, multiply_linear_by_lr=multiplied)
    np.testing.assert_array_equal(ours, zeros)


@pytest.mark.parametrize("multiplied", [False, True])
def test_ftrl_shrinks_by_l1_l2_and_the_shrinkage_of_the_loss(multiplied):
    accum = np.array([0.1, 0.4, 2.0, 30.0], np.float32)
    lr, l1, l2, extra = 0.1, 0.7, 0.3, 0.05
    new = accum + GRAD**2
    linear = GRAD + 2 * extra * VAR - (np.sqrt(new) - np.sqrt(accum)) / lr * VAR
    wanted = (l1 * np.sign(linear) - linear) / (np.sqrt(new) / lr + 2 * l2)
    wanted[abs(linear) <= l1] = 0
    assert 0 < np.count_nonzero(wanted) < 4
    given = {"var": VAR, "accum": accum, "linear": 0 * VAR, "grad": GRAD}
    rates = {"lr": lr, "l1": l1, "l2": l2, "lr_power": -0.5, "l2_shrinkage": extra}
    ours = moved(shrinking.ftrl, given, **rates, multiply_linear_by_lr=multiplied)
    np.testing.assert_allclose(ours, wanted, rtol=1e-5)
