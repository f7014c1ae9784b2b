"""Tests of loss_scale.py: how the dynamic scale moves with overflows."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.common.optimizers.loss_scale import DynamicLossScale


def run(flags, initial=64.0, period=3, minimum=1.0, maximum=1024.0, tolerance=0.05):
    """Returns (scale, steps, overflows) after each step; a flag tells if the step was finite."""
    with tf.Graph().as_default(), tf.Session() as session:
        scale = DynamicLossScale(initial, period, minimum, maximum, tolerance)
        finite, counted = tf.placeholder(tf.bool, []), tf.constant(True)
        update = scale.update(finite, counted)
        session.run(tf.global_variables_initializer())
        history = []
        for flag in flags:
            session.run(update, {finite: flag})
            history.append(session.run([scale.variable, scale.steps, scale.overflows]))
        return [tuple(map(float, row)) for row in history]


def test_scale_doubles_after_the_period_and_counts_anew():
    history = run([True] * 4)
    assert history == [(64, 1, 0), (64, 2, 0), (128, 0, 0), (128, 1, 0)]


def test_early_overflow_halves_the_scale():
    assert run([True, False]) == [(64, 1, 0), (32, 0, 0)]


def test_rare_overflow_within_the_tolerance_is_only_counted():
    history = run([True, True, True, False], period=100, tolerance=0.25)
    assert history[-1] == (64, 4, 1)


def test_scale_stays_within_its_bounds():
    assert run([True] * 3, initial=1024.0)[-1][0] == 1024.0
    assert run([False], initial=1.0)[-1][0] == 1.0
