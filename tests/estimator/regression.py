"""A small regression model and its input, for the tests of the estimator.

It has few operations, so that each test compiles quickly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Optional
from unittest import mock

import numpy as np
import tensorflow as tf

from cerebras_tf.estimator import estimator as estimator_module
from cerebras_tf.estimator.estimator import CerebrasEstimator
from cerebras_tf.estimator.run_config import CSRunConfig

v1 = tf.compat.v1
WIDTH = 3


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """A tanh layer and a weighted sum; `params` may hold `rate`, `width` and `hooks`."""
    width = params.get("width", 2)
    with v1.variable_scope("layer"):
        kernel = v1.get_variable("kernel", initializer=_start(WIDTH, width))
    output = v1.get_variable("output", initializer=_start(width, 1))
    hidden = tf.tanh(tf.matmul(features, kernel), name="hidden")
    scores = tf.reshape(tf.matmul(hidden, output), [-1], name="scores")
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"scores": scores, "hidden": hidden})
    loss = tf.reduce_mean(tf.square(scores - labels), name="cost")
    step = v1.train.get_global_step()
    train_op = v1.train.MomentumOptimizer(params.get("rate", 0.1), 0.5).minimize(loss, step)
    metrics = {
        "error": v1.metrics.mean_absolute_error(labels, scores),
        "positive": v1.metrics.accuracy(labels > 0, scores > 0),
    }
    hooks = params["hooks"](loss) if "hooks" in params else None
    return tf.estimator.EstimatorSpec(
        mode, {"scores": scores}, loss, train_op, metrics, training_hooks=hooks
    )


def _start(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def data(count: int = 12, size: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """float32 [count, size, WIDTH] features and [count, size] labels."""
    rng = np.random.default_rng(8)
    features = rng.standard_normal((count, size, WIDTH)).astype(np.float32)
    return features, features.sum(-1)


def dataset(start: int = 0) -> Any:
    """Batches of 4, over and over, beginning with the batch of step `start`."""
    return tf.data.Dataset.from_tensor_slices(data()).repeat().skip(start)


def ragged_dataset() -> Any:
    """48 examples in batches of 10; the last one has 8. Batch sizes are not known beforehand."""
    features, labels = data()
    flat = features.reshape(-1, WIDTH), labels.reshape(-1)
    return tf.data.Dataset.from_tensor_slices(flat).batch(10)


def build(
    model_dir: Any,
    params: Optional[dict[str, Any]] = None,
    model: Callable[..., Any] = model_fn,
    warm_start_from: Any = None,
    use_cs: bool = True,
    batches_per_step: int = 1,
    **config: Any,
) -> CerebrasEstimator:
    """An estimator of the model that says and summarises nothing unless told to."""
    settings = {"save_summary_steps": None, "log_step_count_steps": None, **config}
    return CerebrasEstimator(
        model,
        str(model_dir),
        config=CSRunConfig(tf_random_seed=1, **settings),
        params=params or {},
        warm_start_from=warm_start_from,
        use_cs=use_cs,
        batches_per_step=batches_per_step,
    )


@contextlib.contextmanager
def models_built() -> Iterator[list[Any]]:
    """Gives the list of the ModelGraphs that estimators build within, the newest last."""
    made: list[Any] = []
    build_model = estimator_module.build

    def kept(*args: Any) -> Any:
        made.append(build_model(*args))
        return made[-1]

    with mock.patch.object(estimator_module, "build", kept):
        yield made


def variables_of(model_dir: Any) -> dict[str, np.ndarray]:
    """Content of a folder's latest checkpoint."""
    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray], rtol: float) -> None:
    """Same names, same content within a relative tolerance; 0 means equal bits."""
    assert set(first) == set(second)
    for name, content in first.items():
        np.testing.assert_allclose(content, second[name], rtol=rtol, atol=rtol, err_msg=name)
