"""A user's script: plain tf.estimator calls, nothing of wafers. wafer_script.py FOLDER BATCH STEPS.

Prints what a test compares: metrics as JSON after a word, one a line.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.memoryx.sparsifier import TopKSparsifier

v1 = tf.compat.v1
ROWS, WIDTH = 640, 8
ROWS_OF_STEP = 8  # on all wafers together


def data(seed, rows):
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, WIDTH)).astype(np.float32)
    return x, np.sin(x.sum(axis=1, keepdims=True))


def model_fn(features, labels, mode):
    """Three layers; Adam with gradients clipped by their global norm."""

    def dense(x, units, seed, activation=None):
        initializer = v1.glorot_uniform_initializer(seed=seed)
        return v1.layers.dense(x, units, activation, kernel_initializer=initializer)

    hidden = dense(dense(features, 32, 1, tf.tanh), 32, 2, tf.tanh)
    output = dense(hidden, 1, 3)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"output": output})
    loss = v1.losses.mean_squared_error(labels, output)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"error": v1.metrics.mean_absolute_error(labels, output)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    v1.summary.scalar("shown", loss)
    optimizer = v1.train.AdamOptimizer(1e-2)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    step = v1.train.get_or_create_global_step()
    train_op = optimizer.apply_gradients(zip(gradients, variables), step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Losses(tf.estimator.SessionRunHook):
    """Prints the loss of every step; at one step it may hurt its process in the way asked for."""

    def __init__(self, loss):
        self._loss = loss

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs([self._loss, v1.train.get_global_step()])

    def after_run(self, run_context, run_values):
        loss, step = run_values.results
        print(f"LOSS {step} {float(loss)!r}", flush=True)


class Shrinks(tf.estimator.SessionRunHook):
    """Assigns a variable, after every step."""

    def __init__(self, name):
        self._name = name

    def begin(self):
        kernel = v1.global_variables(self._name)[0]
        self._shrink = kernel.assign(kernel * 0.9)

    def after_run(self, run_context, run_values):
        run_context.session.run(self._shrink)


def with_losses(features, labels, mode):
    spec = model_fn(features, labels, mode)
    if mode == tf.estimator.ModeKeys.TRAIN:
        hooks = {"training_hooks": [Losses(spec.loss)], "training_chief_hooks": []}
        for kind, name in json.loads(os.environ.get("SHRINKS", "{}")).items():
            hooks[kind].append(Shrinks(name))
        spec = spec._replace(**hooks)
    return spec


def main(folder, batch, steps):
    config = CSRunConfig(
        save_checkpoints_steps=int(os.environ.get("SAVE_EVERY", "10")),
        memoryx_dir=os.environ.get("MEMORYX_DIR"),
        profile=int(os.environ["PROFILE"]) if "PROFILE" in os.environ else None,
        memoryx_ram_gb=0.05 if os.environ.get("MEMORYX_DIR") else None,
    )
    estimator = CerebrasEstimator(with_losses, model_dir=folder, config=config)
    train, test = data(0, ROWS), data(1, 60)

    newest = tf.train.latest_checkpoint(folder)
    made = int(tf.train.load_variable(newest, "global_step")) if newest else 0

    def train_fn():  # continues after the steps that are made
        rows = tf.data.Dataset.from_tensor_slices(train).repeat()
        return rows.skip(made * ROWS_OF_STEP).batch(batch, True)

    def test_fn():
        return tf.data.Dataset.from_tensor_slices(test).batch(4)

    level = float(os.environ.get("SPARSITY", "0"))
    sparsifier = TopKSparsifier(1, level) if level else None
    if stop := int(os.environ.get("STOPS_AT", "0")):
        estimator.train(train_fn, max_steps=stop, sparsifier=sparsifier)
        made = stop
    estimator.train(train_fn, max_steps=steps, sparsifier=sparsifier)
    if "ONLY_TRAINS" in os.environ:
        return
    for name, limit in (("WHOLE", None), ("PART", 5)):
        found = estimator.evaluate(test_fn, steps=limit)
        print(name, json.dumps({key: float(value) for key, value in found.items()}), flush=True)
    found = [float(row["output"][0]) for row in estimator.predict(test_fn)]
    print("PREDICTED", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    # More runs in folders below, with other variables: a launch takes longer than a run.
    for name, given in json.loads(os.environ.get("RUNS", "{}")).items():
        os.environ.update(given)
        print(f"RUN {name}", flush=True)
        main(os.path.join(sys.argv[1], name), int(sys.argv[2]), int(sys.argv[3]))
