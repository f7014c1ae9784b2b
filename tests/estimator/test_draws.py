"""Random ops draw once a run and anew in every run; a run that goes on draws what it would have."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.estimator.regression import build, dataset, variables_of

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


def sampler(features, labels, mode, params):
    """Noise on the features in every mode, and every `every` runs one step of training."""
    noise = tf.random.normal([4, 3], seed=5, name="noise")
    kernel = v1.get_variable("kernel", initializer=np.ones((3, 1), np.float32))
    scores = tf.reshape(tf.matmul(features + noise, kernel), [-1])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"noise": noise, "scores": scores, "x": features})
    loss = tf.reduce_mean(tf.square(scores - labels))
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        runs = v1.get_variable("runs", initializer=0, trainable=False)
        moved = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
        with tf.control_dependencies([moved, runs.assign_add(1)]):
            last = tf.equal(runs.read_value() % params.get("every", 1), 0)
            step = v1.train.get_global_step()
            train_op = v1.assign_add(step, tf.cast(last, tf.int64)).op
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Noise(tf.estimator.SessionRunHook):
    """Keeps what is drawn in every run."""

    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs("noise:0")

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)


def test_every_batch_of_a_prediction_has_noise_of_its_own_and_the_hosts(tmp_path):
    made = build(tmp_path, model=sampler)
    made.train(dataset, max_steps=1)
    wafer, host = (
        list(made.predict(lambda: dataset().take(3), use_cs=use_cs)) for use_cs in (True, False)
    )
    for ours, theirs in zip(wafer, host):
        np.testing.assert_allclose(ours["noise"], theirs["noise"], rtol=1e-6)
    assert not np.any(wafer[0]["noise"] == wafer[4]["noise"])
    kernel = made.get_variable_value("kernel")
    for item in wafer:  # what is predicted is what the scores were made of
        wanted = (item["x"] + item["noise"]) @ kernel
        np.testing.assert_allclose(item["scores"], wanted[0], rtol=1e-5)


def test_every_batch_of_an_evaluation_has_noise_of_its_own_and_the_hosts(tmp_path):
    made = build(tmp_path, model=sampler)
    made.train(dataset, max_steps=1)
    seen = {}
    for use_cs in (True, False):
        noise = Noise()
        result = made.evaluate(dataset, steps=3, hooks=[noise], use_cs=use_cs)
        seen[use_cs] = (result["loss"], noise.seen)
    np.testing.assert_allclose(seen[True][0], seen[False][0], rtol=1e-5)
    np.testing.assert_allclose(seen[True][1], seen[False][1], rtol=1e-6)
    assert not np.any(seen[True][1][0] == seen[True][1][1])


@pytest.mark.parametrize("use_cs", [True, False])
def test_every_run_of_an_accumulated_step_draws_anew(tmp_path, use_cs):
    noise = Noise()
    made = build(tmp_path, {"every": 3}, model=sampler)
    made.train(dataset, hooks=[noise], max_steps=2, use_cs=use_cs)
    assert len(noise.seen) == 6
    assert len({array.tobytes() for array in noise.seen}) == 6


def test_a_run_that_goes_on_draws_what_it_would_have(tmp_path):
    whole, parts = Noise(), Noise()
    made = build(tmp_path / "whole", {"every": 3}, model=sampler)
    made.train(dataset, hooks=[whole], max_steps=4)
    for start, last in ((0, 2), (6, 4)):
        again = build(tmp_path / "parts", {"every": 3}, model=sampler)
        again.train(lambda start=start: dataset(start), hooks=[parts], max_steps=last)
    np.testing.assert_array_equal(parts.seen, whole.seen)
    found, wanted = variables_of(tmp_path / "parts"), variables_of(tmp_path / "whole")
    assert found["cerebras_tf/random_step"] == wanted["cerebras_tf/random_step"] == 12
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_a_checkpoint_says_nothing_of_draws_where_the_global_step_does(tmp_path):
    build(tmp_path, model=sampler).train(dataset, max_steps=2)
    assert set(variables_of(tmp_path)) == {"global_step", "kernel", "runs"}


def test_the_host_goes_on_from_a_checkpoint_with_draws(tmp_path):
    made = build(tmp_path, {"every": 3}, model=sampler)
    made.train(dataset, max_steps=2)
    made.train(dataset, max_steps=3, use_cs=False)
    assert set(variables_of(tmp_path)) == {"global_step", "kernel", "runs"}
