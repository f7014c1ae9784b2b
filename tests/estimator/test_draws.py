"""Random ops draw once a run and anew in every run; a run that goes on draws what it would have."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.estimator.regression import assert_equal, build, dataset, variables_of

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


class Stop(tf.estimator.SessionRunHook):
    """Ends the session once, behind a number of runs, as a preempted worker does."""

    def __init__(self, runs):
        self.left = runs

    def after_run(self, run_context, run_values):
        self.left -= 1
        if self.left == 0:
            raise tf.errors.AbortedError(None, None, "preempted")


def test_a_session_that_recovers_draws_what_a_run_that_goes_on_would(tmp_path):
    recovered, second = Noise(), Noise()
    made = build(tmp_path / "recovers", model=sampler, save_checkpoints_steps=3)
    made.train(dataset, hooks=[recovered, Stop(5)], max_steps=6)
    parts = build(tmp_path / "parts", model=sampler, save_checkpoints_steps=3)
    parts.train(dataset, max_steps=3)
    parts.train(dataset, hooks=[second], max_steps=6)
    np.testing.assert_array_equal(recovered.seen[-3:], second.seen)
    assert_equal(variables_of(tmp_path / "recovers"), variables_of(tmp_path / "parts"), 0)


def test_a_checkpoint_says_nothing_of_draws_where_the_global_step_does(tmp_path):
    build(tmp_path, model=sampler).train(dataset, max_steps=2)
    assert set(variables_of(tmp_path)) == {"global_step", "kernel", "runs"}


def test_the_host_goes_on_from_a_checkpoint_with_draws(tmp_path):
    made = build(tmp_path, {"every": 3}, model=sampler)
    made.train(dataset, max_steps=2)
    made.train(dataset, max_steps=3, use_cs=False)
    assert set(variables_of(tmp_path)) == {"global_step", "kernel", "runs"}


def test_a_run_that_goes_on_by_a_saver_of_the_users_draws_what_it_would_have(tmp_path, caplog):
    def saved_by_user(features, labels, mode, params):
        spec = sampler(features, labels, mode, params)
        return spec._replace(scaffold=v1.train.Scaffold(saver=params["saver"](sharded=True)))

    class Notes(v1.train.Saver):  # no checkpoint
        def save(self, sess, save_path, global_step=None, **kwargs):
            return save_path

    whole, parts = Noise(), Noise()
    params = {"every": 3, "saver": v1.train.Saver}
    build(tmp_path / "whole", params, model=saved_by_user).train(
        dataset, hooks=[whole], max_steps=4
    )
    for start, last in ((0, 2), (6, 4)):
        again = build(tmp_path / "parts", params, model=saved_by_user)
        again.train(lambda start=start: dataset(start), hooks=[parts], max_steps=last)
    np.testing.assert_array_equal(parts.seen, whole.seen)
    assert variables_of(tmp_path / "parts")["cerebras_tf/random_step"] == 12
    assert "repeats random numbers" not in caplog.text
    made = build(tmp_path / "none", {**params, "saver": Notes}, model=saved_by_user)
    with caplog.at_level("WARNING", logger="tensorflow"):
        made.train(dataset, max_steps=2)
    assert caplog.text.count("repeats random numbers") == 1


SIZES = (8, 16, 8, 5, 16, 8)


def dropping(features, labels, mode, params):
    """Seeded dropout on batches of any size, and their noise where it is predicted."""
    kernel = v1.get_variable("kernel", initializer=np.ones((3, 1), np.float32))
    hidden = tf.nn.dropout(features * tf.reduce_sum(kernel), rate=0.5, seed=7)
    noise = tf.random.uniform(tf.shape(features), seed=3)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"noise": noise, "hidden": hidden})
    loss = tf.reduce_mean(tf.square(hidden + noise - labels[:, None]), name="cost")
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.001).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def batches_of(sizes):
    """Features and labels in batches of these sizes."""
    random = np.random.default_rng(2)
    made = [random.standard_normal((size, 4)).astype(np.float32) for size in sizes]
    kind = tf.TensorSpec([None, 3]), tf.TensorSpec([None])
    return tf.data.Dataset.from_generator(
        lambda: ((x[:, :3], x[:, 3]) for x in made), output_signature=kind
    )


class Losses(Noise):
    """Keeps every loss."""

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs("cost:0")


def losses_of(folder, start=0, stop=6, use_cs=True):
    seen = Losses()
    made = build(folder, model=dropping, use_cs=use_cs)
    made.train(lambda: batches_of(SIZES).skip(start), hooks=[seen], max_steps=stop)
    return seen.seen


def test_batches_of_other_sizes_draw_the_hosts_numbers(tmp_path):
    wafer, host = (losses_of(tmp_path / str(s), use_cs=s) for s in (True, False))
    np.testing.assert_allclose(wafer, host, rtol=1e-5)
    made = build(tmp_path / "True", model=dropping)
    ours, theirs = (
        list(made.predict(lambda: batches_of((4, 4, 2)), use_cs=use_cs)) for use_cs in (True, False)
    )
    for item, wanted in zip(ours, theirs):
        np.testing.assert_allclose(item["noise"], wanted["noise"], rtol=1e-6)
        np.testing.assert_allclose(item["hidden"], wanted["hidden"], rtol=1e-5)


def test_a_run_over_batches_of_other_sizes_goes_on_as_if_never_stopped(tmp_path):
    whole = losses_of(tmp_path / "whole")
    parts = [*losses_of(tmp_path / "parts", stop=3), *losses_of(tmp_path / "parts", start=3)]
    np.testing.assert_array_equal(parts, whole)
    found, wanted = variables_of(tmp_path / "parts"), variables_of(tmp_path / "whole")
    made = [name for name in wanted if name.startswith("cerebras_tf/random_step/random_step/")]
    assert found.keys() == wanted.keys() and len(made) == 2
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
