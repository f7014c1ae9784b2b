"""Families of models that the first page lists are refused in a sentence before the first step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.errors import ConfigError, UnsupportedOpError
from tests.e2e.both_sides import assert_same, estimator, input_fn
from tests.e2e.public_style import network, regression

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def matrix_root(features):
    weight = v1.get_variable("weight", [6, 6], initializer=v1.constant_initializer(np.eye(6)))
    return tf.reduce_sum(tf.matmul(features["x"], tf.linalg.sqrtm(weight)), -1)


FAMILIES = [matrix_root]


def model(make):
    return lambda features, labels, mode: regression(mode, make(features), labels)


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_training_is_refused_before_the_first_step(make, tmp_path):
    losses = []
    made = estimator(model(make), tmp_path, True, losses)
    with pytest.raises(UnsupportedOpError, match="no IR form") as raised:
        made.train(input_fn, max_steps=1)
    assert "\n" not in str(raised.value)
    assert losses == []
    assert not list(tmp_path.glob("*.index"))


def test_an_assignment_in_evaluation_is_refused(tmp_path):
    def counting(features, labels, mode):
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), trainable=False)
        spec = regression(mode, tf.squeeze(network(features["x"]), -1), labels)
        if mode != tf.estimator.ModeKeys.EVAL:
            return spec
        update = v1.assign_add(count, 1.0)
        return spec._replace(eval_metric_ops={"count": (tf.identity(count), update.op)})

    made = estimator(counting, tmp_path, True, [])
    made.train(input_fn, max_steps=1)
    with pytest.raises(UnsupportedOpError, match="only training may assign variables"):
        made.evaluate(input_fn, steps=1)


def test_distribution_strategies_are_refused(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    config = CSRunConfig(train_distribute=strategy)
    made = CerebrasEstimator(lambda features, labels, mode: None, str(tmp_path), config=config)
    with pytest.raises(ConfigError, match="train_distribute must be None on the wafer"):
        made.train(input_fn, max_steps=1, use_cs=True)


def keras_model_fn(folder, checkpoint_format):
    """The model_fn of a compiled Keras model."""
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(6,), name="dense")])
    model.compile(optimizer=tf.keras.optimizers.legacy.SGD(0.1), loss="mse")
    made = tf.keras.estimator.model_to_estimator(
        model, model_dir=str(folder), checkpoint_format=checkpoint_format
    )
    return made.model_fn


def keras_input_fn():
    return input_fn().map(lambda features, labels: (features["x"], labels["y"]))


@pytest.mark.parametrize("checkpoint_format", ["saver", "checkpoint"])
def test_checkpoints_of_a_keras_model_move_between_host_and_wafer(tmp_path, checkpoint_format):
    content = []
    for places in ((False, False, False), (True, False, True)):
        folder = tmp_path / str(len(content))
        made = CerebrasEstimator(keras_model_fn(folder, checkpoint_format), str(folder))
        for use_cs in places:
            made.train(keras_input_fn, steps=2, use_cs=use_cs)
        metrics = [made.evaluate(keras_input_fn, steps=2, use_cs=place) for place in places[:2]]
        assert_same(*metrics, "metrics")
        content.append({n: made.get_variable_value(n) for n in made.get_variable_names()})
    assert_same(content[1], content[0], "variables")
