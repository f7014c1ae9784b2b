"""Tests of schedules.py: each learning rate against its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config import schema
from modelzoo.common.config import sections
from modelzoo.common.optimizers.schedules import learning_rate


def rates(value, steps, reset_steps=True):
    report = schema.Report("test")
    pieces = sections.build_schedule(value, "learning_rate", report)
    assert report.messages == []
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = learning_rate(pieces, step, reset_steps)
        return [session.run(rate, {step: s}) for s in steps]


def linear(first, last, steps):
    return {
        "scheduler": "Linear",
        "initial_learning_rate": first,
        "end_learning_rate": last,
        "steps": steps,
    }


def test_number_is_constant():
    np.testing.assert_allclose(rates("1e-3", [0, 10**6]), [1e-3, 1e-3], rtol=1e-6)


def test_linear_is_a_line_and_then_stays():
    steps = np.array([0, 1, 50, 100, 1000])
    expected = 0.1 + (0.5 - 0.1) * np.minimum(steps / 100, 1)
    np.testing.assert_allclose(rates(linear(0.1, 0.5, 100), steps), expected, rtol=1e-6)


def test_polynomial_follows_its_power():
    steps = np.array([0, 30, 99, 100])
    value = {**linear(1.0, 0.2, 100), "scheduler": "Polynomial", "power": 2.0}
    expected = 0.8 * (1 - np.minimum(steps / 100, 1)) ** 2 + 0.2
    np.testing.assert_allclose(rates(value, steps), expected, rtol=1e-5)


def test_polynomial_cycle_grows_to_the_next_multiple():
    steps = np.array([0, 100, 101, 150, 200, 201])
    value = {**linear(1.0, 0.0, 100), "scheduler": "Polynomial", "cycle": True}
    length = 100 * np.maximum(np.ceil(steps / 100), 1)
    np.testing.assert_allclose(rates(value, steps), 1 - steps / length, rtol=1e-5, atol=1e-7)


def test_cosine_falls_to_alpha():
    steps = np.array([0, 10, 50, 100, 500])
    value = {"scheduler": "Cosine", "initial_learning_rate": 2.0, "decay_steps": 100, "alpha": 0.1}
    done = np.minimum(steps / 100, 1)
    expected = 2.0 * (0.9 * 0.5 * (1 + np.cos(math.pi * done)) + 0.1)
    np.testing.assert_allclose(rates(value, steps), expected, rtol=1e-5)


@pytest.mark.parametrize("staircase", [False, True])
def test_exponential_decays_by_its_rate(staircase):
    steps = np.array([0, 5, 10, 25])
    value = {
        "scheduler": "Exponential",
        "initial_learning_rate": 1.0,
        "decay_steps": 10,
        "decay_rate": 0.5,
        "staircase": staircase,
    }
    power = np.floor(steps / 10) if staircase else steps / 10
    np.testing.assert_allclose(rates(value, steps), 0.5**power, rtol=1e-5)


def test_piecewise_constant_keeps_a_value_up_to_and_with_its_boundary():
    value = {"scheduler": "PiecewiseConstant", "boundaries": [10, 20], "values": [3.0, 2.0, 1.0]}
    assert rates(value, [0, 10, 11, 20, 21]) == [3.0, 3.0, 2.0, 2.0, 1.0]


def test_pieces_run_one_after_another_with_steps_of_their_own():
    value = [linear(0.0, 1.0, 10), linear(1.0, 0.0, 100)]
    steps = [0, 5, 9, 10, 60, 110, 500]
    np.testing.assert_allclose(rates(value, steps), [0, 0.5, 0.9, 1.0, 0.5, 0, 0], atol=1e-6)


def test_pieces_see_the_global_step_without_reset():
    value = [linear(0.0, 1.0, 10), linear(1.0, 0.0, 100)]
    np.testing.assert_allclose(rates(value, [5, 10, 60], False), [0.5, 0.9, 0.4], atol=1e-6)


def test_piece_without_length_before_another_is_refused():
    report = schema.Report("f.yaml")
    constant = {"scheduler": "Constant", "learning_rate": 1.0}
    sections.build_schedule([constant, constant], "optimizer.learning_rate", report)
    assert report.messages == [
        "f.yaml: optimizer.learning_rate[0].steps is required before another piece."
    ]
