"""Trains one model on the host and on the wafer and compares the two runs.

What the end-to-end tests share. Models are in models.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.estimator.estimator import CerebrasEstimator
from cerebras_tf.estimator.run_config import CSRunConfig
from tests.reading import variables_of
from tests.tolerances import TOLERANCES

STEPS = 20
# A gradient of at most this share of the step's largest is rounding: sums of float32 numbers that
# cancel leave a few units of 6e-8 of their terms.
ROUNDING = 1e-6
ModelFn = Callable[..., Any]
Batch = Any


@dataclass
class Run:
    """What a run left.

    Attributes:
        losses: loss of every step.
        variables: content of the last checkpoint, by name.
        peaks: for every trainable variable, the largest share of the step's largest gradient that
            each element's gradient ever had; measured where asked for.
    """

    losses: list[float] = field(default_factory=list)
    variables: dict[str, np.ndarray] = field(default_factory=dict)
    peaks: dict[str, np.ndarray] = field(default_factory=dict)


class _LossRecorder(tf.estimator.SessionRunHook):
    def __init__(self, loss: Any, run: Run) -> None:
        self._loss, self._run = loss, run

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._run.losses.append(float(run_values.results))


class _PeakRecorder(tf.estimator.SessionRunHook):
    def __init__(self, gradients: dict[str, Any], run: Run) -> None:
        self._gradients, self._run = gradients, run

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self._gradients)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        sizes = {name: np.abs(value) for name, value in run_values.results.items()}
        largest = max(size.max() for size in sizes.values())
        for name, size in sizes.items():
            share = size / largest if largest > 0 else size
            self._run.peaks[name] = np.maximum(self._run.peaks.get(name, 0.0), share)


def batches(arrays: Sequence[Batch]) -> Callable[[], Any]:
    """An input_fn that yields (features, labels) pairs in order, over and over.

    The batch of a step depends on nothing but the step: with `start` of input_from it goes on.
    """
    return input_from(arrays, 0)


def input_from(arrays: Sequence[Batch], start: int) -> Callable[[], Any]:
    """As `batches`, beginning with the batch of step `start`."""

    def input_fn() -> Any:
        stacked = tf.nest.map_structure(lambda *parts: np.stack(parts), *arrays)
        return tf.data.Dataset.from_tensor_slices(stacked).repeat().skip(start)

    return input_fn


def estimator(
    model_fn: ModelFn,
    model_dir: Any,
    run: Run,
    measure: bool = False,
    use_cs: bool = True,
    **config: Any,
) -> CerebrasEstimator:
    """An estimator whose training is recorded in `run`."""

    def recorded(features: Any, labels: Any, mode: str, params: Any) -> Any:
        tf.keras.utils.set_random_seed(11)  # initializers of Keras heed no other seed
        spec = model_fn(features, labels, mode, params)
        if mode != tf.estimator.ModeKeys.TRAIN:
            return spec
        hooks: list[Any] = [_LossRecorder(spec.loss, run)]
        if measure:
            hooks.append(_PeakRecorder(_gradients(spec.loss), run))
        return spec._replace(training_hooks=[*spec.training_hooks, *hooks])

    settings = {"save_summary_steps": None, "log_step_count_steps": None}
    settings["checkpoint_save_graph_def"] = False  # as text it takes a tenth of a short run
    made = CSRunConfig(**{"tf_random_seed": 11, **settings, **config})
    return CerebrasEstimator(recorded, str(model_dir), None, made, {}, None, use_cs)


def _gradients(loss: Any) -> dict[str, Any]:
    variables = tf.compat.v1.trainable_variables()
    found = tf.gradients(loss, variables)
    return {v.op.name: tf.convert_to_tensor(g) for v, g in zip(variables, found) if g is not None}


def train(
    model_fn: ModelFn,
    arrays: Sequence[Batch],
    model_dir: Any,
    use_cs: bool,
    steps: int = STEPS,
    measure: bool = False,
    **config: Any,
) -> Run:
    """Trains from scratch."""
    run = Run()
    made = estimator(model_fn, model_dir, run, measure, **config)
    made.train(batches(arrays), max_steps=steps, use_cs=use_cs)
    run.variables = variables_of(model_dir)
    return run


def check_parity(
    model_fn: ModelFn, arrays: Sequence[Batch], tmp_path: Any, on_host: Optional[ModelFn] = None
) -> tuple[Run, Run]:
    """Asserts that 20 steps on the wafer are those of the host; returns (host, wafer).

    Args:
        model_fn: the model.
        arrays: batches.
        tmp_path: folder for both runs.
        on_host: the model for the host where it differs, as for half precision.
    """
    host = train(on_host or model_fn, arrays, tmp_path / "host", use_cs=False, measure=True)
    wafer = train(model_fn, arrays, tmp_path / "wafer", use_cs=True)
    assert_same_run(host, wafer)
    return host, wafer


def assert_same_run(host: Run, wafer: Run) -> None:
    """Same losses, same variables, but for elements whose updates are noise on both sides.

    The rule: an element whose gradient was never more than rounding (ROUNDING times the largest
    gradient of the step), yet not always zero, is left out. Its true gradient is zero; an optimizer
    that divides by the gradient's size, as Adam, turns the rounding into whole steps. Elements
    whose gradient is exactly zero stay in: nothing may move them. What belongs to an element (its
    slots) is left out with it.
    """
    relative, _ = TOLERANCES["training_loss"]
    assert len(host.losses) == len(wafer.losses)
    np.testing.assert_allclose(wafer.losses, host.losses, rtol=relative, err_msg="loss")
    assert set(wafer.variables) == set(host.variables)
    relative, absolute = TOLERANCES["training_variable"]
    for name, theirs in host.variables.items():
        ours = wafer.variables[name]
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
        kept = ~_left_out(name, theirs, host.peaks)
        np.testing.assert_allclose(
            ours[kept], theirs[kept], rtol=relative, atol=absolute, err_msg=name
        )


def _left_out(name: str, content: np.ndarray, peaks: dict[str, np.ndarray]) -> np.ndarray:
    """Where a variable, or the variable that a slot belongs to, has only rounding as gradient."""
    owner = max((n for n in peaks if name == n or name.startswith(n + "/")), key=len, default="")
    if not owner or peaks[owner].shape != content.shape:
        return np.zeros(content.shape, bool)
    return is_rounding(peaks[owner])


def is_rounding(peak: np.ndarray) -> np.ndarray:
    """Where a gradient was never more than rounding, yet not always zero."""
    return (peak > 0) & (peak <= ROUNDING)
