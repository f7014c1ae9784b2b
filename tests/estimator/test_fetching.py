"""A session that fetches values of a training model trains only with the training op."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [], initializer=v1.constant_initializer(2.0))
    product = tf.multiply(features["x"], weight, name="product")
    loss = tf.reduce_mean(tf.square(product - labels))
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensors(({"x": np.ones(4, "f")}, np.zeros(4, "f"))).repeat()


class Look(tf.estimator.SessionRunHook):
    """Fetches an activation in a session call of its own, behind every step."""

    def __init__(self):
        self.seen = []

    def after_run(self, run_context, run_values):
        product, step = run_context.session.run(["product:0", v1.train.get_global_step()])
        self.seen.append((float(product[0]), int(step)))


def trained_weight(tmp_path, hooks):
    estimator = CerebrasEstimator(model_fn, str(tmp_path), config=CSRunConfig())
    estimator.train(input_fn, max_steps=3, hooks=hooks)
    return float(estimator.get_variable_value("weight"))


def test_a_fetch_without_the_training_op_does_not_train(tmp_path):
    look = Look()
    alone = trained_weight(tmp_path / "alone", [])
    watched = trained_weight(tmp_path / "watched", [look])
    assert watched == alone
    assert [step for _, step in look.seen] == [1, 2, 3]
    assert look.seen[-1][0] == pytest.approx(alone)
