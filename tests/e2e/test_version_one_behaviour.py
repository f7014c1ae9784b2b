"""A script that switches TensorFlow 2 behaviour off trains on wafer and host alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf

SCRIPT = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
from cerebras_tf import CerebrasEstimator, CSRunConfig

def model_fn(features, labels, mode):
    rate = tf.train.exponential_decay(0.1, tf.train.get_global_step(), 2, 0.9)
    hidden = tf.layers.dense(features["x"], 8, activation=tf.nn.relu)
    product = tf.layers.dense(hidden, 1)
    loss = tf.losses.mean_squared_error(labels, product)
    optimizer = tf.train.MomentumOptimizer(rate, 0.9)
    grads = optimizer.compute_gradients(loss)
    norm = tf.global_norm([grad for grad, _ in grads])
    step = tf.train.get_global_step()
    train_op = tf.cond(
        tf.is_finite(norm),
        lambda: tf.group(optimizer.apply_gradients(grads, global_step=step)),
        lambda: tf.group(tf.assign_add(step, 1)),
    )
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn():
    x = np.linspace(-1, 1, 24).reshape(8, 3).astype(np.float32)
    return tf.data.Dataset.from_tensors(({"x": x}, x.sum(1, keepdims=True))).repeat()

for side in (True, False):
    config = CSRunConfig(tf_random_seed=3)
    folder = f"{sys.argv[1]}/{side}"
    est = CerebrasEstimator(model_fn, folder, config=config, use_cs=side)
    est.train(input_fn, max_steps=6)
    print("KERNEL", repr(est.get_variable_value("dense/kernel").ravel().tolist()))
"""


def test_wafer_and_host_agree_with_version_two_switched_off(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("KERNEL")]
    wafer, host = ([float(x) for x in line[8:-1].split(",")] for line in lines)
    assert wafer == pytest.approx(host, rel=1e-4, abs=1e-6)
