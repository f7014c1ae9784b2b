"""What the tests of model_fns in the style of public code share: inputs and a spec.

A model is a function of (features, labels, mode), as in tests/e2e/both_sides.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
RANDOM = np.random.default_rng(5)


def inputs(features: Any, labels: Any, batch: int = 4) -> Callable[[], Any]:
    """An input_fn of arrays, repeated, in whole batches."""

    def input_fn() -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        return dataset.repeat(3).batch(batch, drop_remainder=True)

    return input_fn


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def variable(name: str, shape: Any, scale: float = 0.3) -> Any:
    return v1.get_variable(
        name, shape, initializer=v1.random_normal_initializer(stddev=scale, seed=len(name))
    )


def spec(mode: str, loss: Callable[[], Any], optimizer: Any = None, **predictions: Any) -> Any:
    """A spec; the loss is only called where there are labels."""
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    value = loss()
    step = v1.train.get_global_step()
    optimizer = optimizer or v1.train.GradientDescentOptimizer(0.05)
    train_op = optimizer.minimize(value, step) if mode == tf.estimator.ModeKeys.TRAIN else None
    metrics = {"loss_again": v1.metrics.mean(value)}
    return tf.estimator.EstimatorSpec(mode, predictions, value, train_op, metrics)
