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

from cerebras_tf import CerebrasEstimator
from tests.e2e.host_and_wafer import Run
from tests.e2e.host_and_wafer import estimator as recorded
from tests.reading import variables_of
from tests.tolerances import TOLERANCES

v1 = tf.compat.v1
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

    losses: list[float] = field(default_factory=list)
    variables: dict[str, np.ndarray] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    predictions: list[Any] = field(default_factory=list)


def estimator(
    model: Callable[..., Any], folder: Any, use_cs: bool, losses: list[float]
) -> CerebrasEstimator:
    """An estimator of `model(features, labels, mode)` that records the losses of its steps."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        return model(features, labels, mode)

    return recorded(model_fn, folder, Run(losses), use_cs=use_cs, save_summary_steps=2)


def run_everything(
    model: Callable[..., Any],
    folder: Any,
    use_cs: bool,
    resumes: bool = False,
    inputs: Callable[[], Any] = input_fn,
) -> Everything:
    """Trains 5 steps, evaluates, predicts, and trains one more step where it resumes."""
    done = Everything()
    made = estimator(model, folder, use_cs, done.losses)
    made.train(inputs, max_steps=STEPS)
    done.variables = variables_of(folder)
    done.metrics = made.evaluate(inputs, steps=2)
    done.predictions = list(made.predict(inputs, yield_single_examples=False))
    if resumes:
        made.train(inputs, steps=1)
    return done


def check(
    model: Callable[..., Any],
    folder: Path,
    resumes: bool = False,
    inputs: Callable[[], Any] = input_fn,
) -> Everything:
    """Asserts that host and wafer give the same; returns what the wafer gave."""
    host = run_everything(model, folder / "host", False, resumes, inputs)
    wafer = run_everything(model, folder / "wafer", True, resumes, inputs)
    assert len(host.losses) == STEPS + resumes
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
        folder, resumes = Path(sys.argv[1]) / chosen, chosen in public_style.RESUMED
        check(public_style.MODELS[chosen], folder, resumes)
        print("SAME", chosen)
