"""Trains, evaluates, predicts and trains on, on host and wafer, and compares all that comes out.

For small model_fns in the style of public Estimator code. As a script it does so for models of
`public_style.py`, named on the command line, with TensorFlow 2 behaviour switched off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tf import CerebrasEstimator, CSRunConfig
from tests.tolerances import TOLERANCES

v1 = tf.compat.v1
SEED = 11
STEPS = 5
BATCH = 4

_rng = np.random.default_rng(0)
_x = _rng.standard_normal((8, 6)).astype(np.float32)
FEATURES = {"x": _x, "ids": _rng.integers(0, 10, (8, 4))}
LABELS = {"y": _x.sum(1), "class": np.abs(_x).argmax(1) % 3}


def input_fn() -> Any:
    """8 examples, three times, in batches of 4: features x [4, 6] and ids [4, 4]."""
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).repeat(3).batch(BATCH, True)


@dataclass
class Everything:
    """What train, evaluate, predict and another step of training gave.

    Attributes:
        losses: of every step.
        variables: content of the checkpoint after the first steps.
        metrics: what evaluate returned.
        predictions: batches.
    """

    losses: list[np.ndarray] = field(default_factory=list)
    variables: dict[str, np.ndarray] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    predictions: list[Any] = field(default_factory=list)


class _Losses(tf.estimator.SessionRunHook):
    def __init__(self, loss: Any, losses: list[np.ndarray]) -> None:
        self._loss, self._losses = loss, losses

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._losses.append(np.asarray(run_values.results))


def estimator(
    model: Callable[..., Any], folder: Any, use_cs: bool, losses: list[np.ndarray]
) -> CerebrasEstimator:
    """An estimator of `model(features, labels, mode)` that notes the losses of its steps."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        tf.keras.utils.set_random_seed(SEED)  # initializers of Keras heed no other seed
        v1.set_random_seed(SEED)
        spec = model(features, labels, mode)
        if mode != tf.estimator.ModeKeys.TRAIN:
            return spec
        hooks = [*spec.training_hooks, _Losses(spec.loss, losses)]
        return spec._replace(training_hooks=hooks)

    quiet = {"log_step_count_steps": None, "checkpoint_save_graph_def": False}
    config = CSRunConfig(tf_random_seed=SEED, save_summary_steps=2, **quiet)
    return CerebrasEstimator(model_fn, str(folder), config=config, use_cs=use_cs)


def run_everything(model: Callable[..., Any], folder: Any, use_cs: bool) -> Everything:
    """Trains 5 steps, evaluates, predicts, and trains one more step."""
    done = Everything()
    made = estimator(model, folder, use_cs, done.losses)
    made.train(input_fn, max_steps=STEPS)
    reader = tf.train.load_checkpoint(str(folder))
    done.variables = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    done.metrics = made.evaluate(input_fn, steps=2)
    done.predictions = list(made.predict(input_fn, yield_single_examples=False))
    made.train(input_fn, steps=1)
    return done


def check(model: Callable[..., Any], folder: Path) -> Everything:
    """Asserts that host and wafer give the same; returns what the wafer gave."""
    host = run_everything(model, folder / "host", use_cs=False)
    wafer = run_everything(model, folder / "wafer", use_cs=True)
    assert len(host.losses) == STEPS + 1
    for part in ("losses", "variables", "metrics", "predictions"):
        assert_same(getattr(wafer, part), getattr(host, part), part)
    return wafer


def assert_same(found: Any, expected: Any, name: str) -> None:
    """Asserts the same structure, the same text, and numbers equal within float32's rounding."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), name
        for key, item in expected.items():
            assert_same(found[key], item, f"{name}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), name
        for index, item in enumerate(expected):
            assert_same(found[index], item, f"{name}/{index}")
    else:
        found, expected = np.asarray(found), np.asarray(expected)
        assert found.dtype == expected.dtype and found.shape == expected.shape, name
        if expected.dtype.kind == "f":
            relative, absolute = TOLERANCES["training_variable"]
            np.testing.assert_allclose(found, expected, relative, absolute, err_msg=name)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)


if __name__ == "__main__":
    v1.disable_v2_behavior()
    from tests.e2e import public_style

    for chosen in sys.argv[2:]:
        check(public_style.MODELS[chosen], Path(sys.argv[1]) / chosen)
        print("SAME", chosen)
