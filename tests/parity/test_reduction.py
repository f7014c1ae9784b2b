"""Parity of reductions with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal, uniform

pytestmark = pytest.mark.tf

AXES = [None, 0, -1, [0, 2], [1]]
OPS = ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"]


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", [*OPS, "reduce_euclidean_norm"])
def test_reduction_agrees_with_tensorflow(name, axis, keepdims):
    reduce = getattr(tf.math, name)
    check_parity(lambda x: reduce(x[0], axis, keepdims=keepdims), [normal(3, 4, 5)], "reduction")


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
def test_extremes_that_tie_share_their_gradient_as_tensorflow_does(name):
    tied = integers(3, 6, high=2).astype(np.float32)
    check_parity(lambda x: getattr(tf, name)(x[0], 1), [tied], "reduction")


def test_product_with_zeros_has_tensorflows_gradient():
    x = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.5, 2.0, 3.0]], np.float32)
    check_parity(lambda x: tf.reduce_prod(x[0], 1), [x], "reduction")


@pytest.mark.parametrize("name", ["reduce_all", "reduce_any"])
def test_logical_reduction_agrees_with_tensorflow(name):
    truths = integers(4, 3, high=2).astype(bool)
    check_parity(lambda x: getattr(tf, name)(x[0], 1), [truths], "reduction")


def test_reductions_of_integers_agree_with_tensorflow():
    def build(x):
        reductions = [tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod]
        return [reduce(x[0] - 7, 1) for reduce in reductions]

    check_parity(build, [integers(4, 5, high=9)], "reduction")


@pytest.mark.parametrize("axis", [0, -1])
def test_positions_of_extremes_agree_with_tensorflow(axis):
    def build(x):
        return [tf.argmax(x[0], axis), tf.argmin(x[0], axis, output_type="int32")]

    check_parity(build, [integers(4, 5, high=3).astype(np.float32)], "reduction")


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_and_products_agree_with_tensorflow(exclusive, reverse):
    def build(x):
        attrs = {"exclusive": exclusive, "reverse": reverse}
        return [tf.cumsum(x[0], 1, **attrs), tf.math.cumprod(x[0], -1, **attrs)]

    check_parity(build, [normal(3, 4, 5)], "reduction")


def test_l2_loss_agrees_with_tensorflow():
    check_parity(lambda x: tf.nn.l2_loss(x[0]), [normal(30, 40)], "reduction")


def test_reduction_over_no_axes_is_the_operand():
    graph = check_parity(lambda x: tf.reduce_sum(x[0], []), [normal(3, 4)], "reduction")
    assert graph.nodes == []


def test_log_sum_exp_agrees_with_tensorflow():
    check_parity(lambda x: tf.reduce_logsumexp(x[0], 1), [normal(3, 4)], "reduction")


@pytest.mark.parametrize("axis", [0, 1, None, [0, 1]], ids=str)
def test_long_sums_agree_with_tensorflow(axis):
    x = uniform(1500, 70, 3)
    check_parity(
        lambda x: [tf.reduce_sum(x[0], axis), tf.reduce_mean(x[0], axis)], [x], "reduction"
    )


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_logarithms_of_sums_agree_with_tensorflow(exclusive, reverse):
    def build(x):
        return tf.math.cumulative_logsumexp(x[0], 1, exclusive, reverse)

    check_parity(build, [normal(2, 5, 3, scale=30.0).astype(np.float64)], "float64")
