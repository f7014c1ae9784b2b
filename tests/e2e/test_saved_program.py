"""A process without TensorFlow trains a saved program as the estimator would have, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.estimator.regression import build, variables_of
from tests.other_process import train_elsewhere

pytestmark = pytest.mark.tf
v1 = tf.compat.v1
STEPS = 5


def model_fn(features, labels, mode, params):
    """Two layers with dropout, trained by Adam with clipped gradients."""
    with v1.variable_scope("model"):
        hidden = v1.layers.dense(features, 16, activation=tf.nn.gelu)
        hidden = v1.layers.dropout(hidden, 0.2, training=True)
        scores = v1.layers.dense(hidden, 1)[:, 0]
    loss = tf.reduce_mean(tf.square(scores - labels), name="cost")
    optimizer, step = v1.train.AdamOptimizer(0.01), v1.train.get_global_step()
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    train_op = optimizer.apply_gradients(zip(clipped, variables), step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Losses(tf.estimator.SessionRunHook):
    """Keeps the loss and the features of every step."""

    def __init__(self):
        self.losses, self.fed = [], {}

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs(["cost:0", "IteratorGetNext:0", "IteratorGetNext:1"])

    def after_run(self, run_context, run_values):
        loss, features, labels = run_values.results
        self.losses.append(loss)
        for name, array in (("IteratorGetNext:0", features), ("IteratorGetNext:1", labels)):
            self.fed.setdefault(name, []).append(array)


def batches():
    random = np.random.default_rng(3)
    features = random.standard_normal((STEPS, 8, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, features.sum(-1)))


def test_another_process_trains_a_saved_program_from_a_checkpoint(tmp_path):
    made = build(tmp_path / "model", model=model_fn, save_checkpoints_steps=STEPS)
    seen = Losses()
    made.train(batches, hooks=[seen], max_steps=STEPS)
    weights = variables_of(tmp_path / "model" / "model.ckpt-0")
    build(tmp_path / "compiled", model=model_fn).compile(batches)
    (file,) = (tmp_path / "compiled" / "compiled").glob("program_train_*.zip")
    found = train_elsewhere(file, tmp_path, weights, seen.fed)
    np.testing.assert_array_equal(found["cost:0"], seen.losses)
    assert found["global_step"] == STEPS
    for name, content in variables_of(tmp_path / "model").items():
        if name != "global_step":
            np.testing.assert_array_equal(found[name], content, err_msg=name)
