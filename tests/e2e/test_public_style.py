"""Models in the style of public Estimator code give the host's numbers on the wafer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.e2e.both_sides import check, estimator, input_fn
from tests.e2e.public_style import MODELS, RESUMED, network, regression

pytestmark = pytest.mark.tf
v1 = tf.compat.v1

# TensorFlow gives the read and the update of a ref variable no order: a busy host reads either.
UNORDERED_IN_VERSION_ONE = {"note_of_the_step_built_after_its_update"}


@pytest.mark.parametrize("name", list(MODELS))
def test_wafer_and_host_agree(name, tmp_path):
    check(MODELS[name], tmp_path, name in RESUMED)


IN_VERSION_ONE = [name for name in MODELS if name not in UNORDERED_IN_VERSION_ONE]


@pytest.mark.parametrize(
    "models",
    [["warm_up_by_condition"], pytest.param(IN_VERSION_ONE, marks=pytest.mark.slow)],
    ids=["one", "all"],
)
def test_wafer_and_host_agree_with_version_two_switched_off(models, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.both_sides", str(tmp_path), *models],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[1] for line in done.stdout.splitlines()] == models


def violated_inside(features, labels, mode):
    """A model whose check fails in a function that reads what the step computes."""

    @tf.function
    def block(x):
        tf.debugging.assert_less(x, -100.0)
        return tf.tanh(x)

    return regression(mode, block(tf.squeeze(network(features["x"]), -1)), labels)


def violated_in_a_branch(features, labels, mode):
    """A model whose check fails in the branch that is taken."""
    scores = tf.squeeze(network(features["x"]), -1)

    def branch():
        with tf.control_dependencies([tf.debugging.assert_less(scores, -100.0)]):
            return 2.0 * scores

    scores = tf.cond(tf.reduce_sum(features["x"]) > -1e9, branch, lambda: scores)
    return regression(mode, scores, labels)


def violated(of_wafer):
    """A model whose check fails, on what the step computes or on a feature."""

    def model(features, labels, mode):
        scores = tf.squeeze(network(features["x"]), -1)
        checked = scores if of_wafer else features["x"]
        with tf.control_dependencies([tf.debugging.assert_less(checked, -100.0)]):
            return regression(mode, tf.identity(scores), labels)

    return model


@pytest.mark.parametrize("use_cs", [True, False], ids=["wafer", "host"])
@pytest.mark.parametrize(
    "model",
    [violated(True), violated(False), violated_inside, violated_in_a_branch],
    ids=["of scores", "of features", "in a function", "in a branch"],
)
def test_a_violated_check_ends_every_mode(model, use_cs, tmp_path):
    made = estimator(model, tmp_path, use_cs, [])
    for run in (
        lambda: made.train(input_fn, max_steps=1),
        lambda: made.evaluate(input_fn, steps=1),
        lambda: next(made.predict(input_fn)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
            run()


@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
def test_a_random_tensor_is_drawn_once_a_step(mode, tmp_path):
    left = []

    class Look(tf.estimator.SessionRunHook):
        def before_run(self, run_context):
            names = ["scores:0", "noise:0", "noisy:0", "seen:0"]
            return tf.estimator.SessionRunArgs(names)

        def after_run(self, run_context, run_values):
            scores, noise, noisy, seen = run_values.results
            left.append((noisy - scores - noise, seen - noise))

    def model(features, labels, mode):
        scores = tf.squeeze(network(features["x"]), -1)
        scores = tf.identity(scores, name="scores")
        noise = tf.random.normal([4], seed=3)
        noise = tf.identity(noise, name="noise")
        tf.numpy_function(lambda array: array, [noise], tf.float32, name="seen")
        noisy = tf.add(scores, noise, name="noisy")
        return regression(mode, noisy, labels, noise=noise)

    made = estimator(model, tmp_path, True, [])
    made.train(input_fn, max_steps=1)
    if mode == "train":
        made.train(input_fn, steps=2, hooks=[Look()])
    elif mode == "evaluate":
        made.evaluate(input_fn, steps=2, hooks=[Look()])
    else:
        list(made.predict(input_fn, hooks=[Look()]))
    assert len(left) >= 2
    for sums in left:
        for rest in sums:
            assert abs(rest).max() < 1e-6
