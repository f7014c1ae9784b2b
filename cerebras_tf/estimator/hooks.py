"""Hooks of a training run: stop on a signal, refuse NaN, record performance."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from cerebras_tf.checkpoints.reader import CheckpointReader
from cerebras_tf.collector import paused_collector
from cerebras_tf.console.graceful_stop import GracefulStop
from cerebras_tf.console.progress import Clock, StepWindow
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.errors import NumericsError
from cerebras_tf.tf_compat.internals import training_util

Quantity = Union[int, tf.Tensor]


class GracefulStopHook(GracefulStop, tf.estimator.SessionRunHook):
    """Ends training after the current step when a signal arrives; see GracefulStop.

        with GracefulStopHook(model_dir=estimator.model_dir) as stop:
            estimator.train(input_fn, hooks=[stop])

    Args:
      model_dir: folder of the checkpoints; None if none are reported.
    """

    def __init__(
        self, abort: Callable[[int], Any] = os._exit, model_dir: Optional[str] = None
    ) -> None:
        super().__init__(abort, None if model_dir is None else lambda: _newest(model_dir))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Asks the loop to stop if a signal has arrived."""
        if self.is_due:
            run_context.request_stop()


def _newest(model_dir: str) -> Optional[tuple[int, str]]:
    """Step and name of the newest checkpoint."""
    found = CheckpointReader.latest(model_dir)
    return None if found is None else (CheckpointReader.step_of(found), found)


class EvaluationStopHook(tf.estimator.SessionRunHook):
    """Ends an evaluation during training when training must stop.

    The checkpoint that is evaluated has been written by then, so only the remaining
    evaluation is lost.

    Args:
      stop: the hook of the enclosing training.
      model_dir: folder whose events are written out before the exception ends training.
    """

    def __init__(self, stop: GracefulStopHook, model_dir: str) -> None:
        self._stop = stop
        self._model_dir = model_dir

    def begin(self) -> None:
        """Raises if the signal arrived before the evaluation."""
        self._raise_if_signalled()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Raises if the signal arrived during the evaluation."""
        self._raise_if_signalled()

    def _raise_if_signalled(self) -> None:
        if self._stop.signal_number is not None:
            tf.compat.v1.summary.FileWriterCache.get(self._model_dir).flush()
            self._stop.raise_if_signalled()


class FreezeObjectsHook(tf.estimator.SessionRunHook):
    """Excludes long-lived objects from Python's cyclic garbage collection during training.

    TensorFlow's modules and graphs and the wafer's programs are about a million objects. A full
    collection visits all of them, every hundred steps of a small model. What remains after the
    first collection after the first step is frozen (gc.freeze); later objects are collected as
    usual. Before the first step, when these objects are created, nothing is collected. Use it as a
    context around training; on exit, frozen objects are collected again:

        with FreezeObjectsHook() as lasting:
            estimator.train(input_fn, hooks=[lasting])

    If the program has frozen objects itself, the hook does nothing.
    """

    def __init__(self) -> None:
        self._is_due = self._has_looked = self._has_frozen = self._is_counted = False
        self._pause = contextlib.ExitStack()

    def __enter__(self) -> FreezeObjectsHook:
        self._is_due = True
        self._pause.enter_context(paused_collector())
        return self

    def __exit__(self, *_: object) -> None:
        self._pause.close()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        if self._has_frozen:
            gc.unfreeze()
        self._is_due = self._has_looked = self._has_frozen = self._is_counted = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Waits for a full collection after the first step."""
        if self._is_due:
            self._is_due = False
            self._pause.close()
            gc.callbacks.append(self._collected)
        elif self._has_frozen and not self._is_counted:
            # Python collects everything once there are a quarter more objects than the last full
            # collection has left. It must not count frozen ones: predictions leave graphs.
            self._is_counted = True
            gc.collect()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Freezes the objects that a full collection has left, unless some are frozen."""
        if phase == "stop" and info["generation"] == 2 and not self._has_looked:
            self._has_looked = True  # once, because counting visits all frozen objects
            self._has_frozen = gc.get_freeze_count() == 0
            if self._has_frozen:
                gc.freeze()


class NanLossError(NumericsError, tf.estimator.NanLossDuringTrainingError):
    """The loss is NaN or infinite; callers of tf.estimator expect its own class."""

    def __str__(self) -> str:
        return str(self.args[0])


class NanGuardHook(tf.estimator.SessionRunHook):
    """Ends training with an error as soon as the loss is NaN or infinite.

    Because of the exception no hook's `end` runs, so the last checkpoint is of an earlier step.
    Chief hooks, such as savers, run before others: `FiniteStateListener` guards what they write of
    the same step.

    Args:
      loss: scalar tensor.
    """

    def __init__(self, loss: Any, model_dir: Optional[str] = None) -> None:
        self._loss = loss
        self._model_dir = model_dir

    def begin(self) -> None:
        """Finds the tensor that reads the global step."""
        self._global_step = training_util._get_or_create_global_step_read()

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Checks the loss.

        Raises:
          NanLossError: it is NaN or infinite.
        """
        loss = float(run_values.results)
        if not np.isfinite(loss):
            step = int(run_context.session.run(self._global_step))
            raise _loss_error(step, loss, self._model_dir)


def _loss_error(step: int, loss: float, model_dir: Optional[str]) -> NanLossError:
    return NanLossError(
        f"training, step {step}: the loss must be finite. Received: {loss}. Lower the learning "
        "rate, clip gradients (max_gradient_norm), use dynamic loss scaling in 16-bit precision, "
        f"or check the input data of this step; {_earlier(model_dir)}."
    )


def _earlier(model_dir: Optional[str]) -> str:
    """Advice on where to resume after NaN, which guards keep out of checkpoints."""
    found = CheckpointReader.latest(model_dir) if model_dir else None
    if found is None:
        return "there is no earlier checkpoint, so start from the beginning"
    last = f"the run resumes from {found}, which was written before"
    before = CheckpointReader.before(found)
    return f"{last}; if it fails again, from {before}" if before else last


class LossWatch(tf.estimator.SessionRunHook):
    """Keeps the loss of the last step, for the guard of a saver that comes after this hook.

    Args:
      loss: scalar tensor.

    Attributes:
      last: the loss of the last step; 0 before the first.
    """

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        self.last = 0.0

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Keeps the loss."""
        self.last = float(run_values.results)


class FiniteStateListener(tf.estimator.CheckpointSaverListener):
    """Refuses to save a step whose loss, or weights that are NaN or infinite.

    A step with a finite loss can damage the weights; the loss shows it one step later.

    Args:
      not_finite: returns names of variables about to be saved that hold NaN or infinity.
      watch: keeps the loss; None to check only the weights.
    """

    def __init__(
        self,
        not_finite: Callable[[], Sequence[str]],
        watch: Optional[LossWatch] = None,
        model_dir: Optional[str] = None,
    ) -> None:
        self._not_finite = not_finite
        self._watch = watch
        self._model_dir = model_dir

    def before_save(self, session: Any, global_step_value: Any) -> None:
        """Checks the loss and the weights.

        Raises:
          NumericsError: some hold NaN or infinity; all are counted, the first is named.
        """
        step = int(global_step_value)
        if self._watch is not None and not np.isfinite(self._watch.last):
            raise _loss_error(step, self._watch.last, self._model_dir)
        damaged = self._not_finite()
        if damaged:
            raise NumericsError(
                f"checkpoint of step {step}: weights must be finite to be saved. "
                f"Received: NaN or infinity in {len(damaged)} variables, the first "
                f"{damaged[0]!r}. Lower the learning rate or clip gradients (max_gradient_norm); "
                f"{_earlier(self._model_dir)}."
            )


class PerformanceSummaryHook(tf.estimator.SessionRunHook):
    """Writes `global_step/sec`, `examples_per_sec`, `tokens_per_sec` and the wafer's peak memory.

    The peak memory is `wafer/memory_high_water_bytes`. Rates are of the steps since the last
    summary, without the first step of a run. A step may take several runs of the session.

    Args:
      examples_per_step: examples in a step, or an integer scalar tensor of those in a run of the
          session; None to omit the rate.
      tokens_per_step: as `examples_per_step`, for tokens.
      memory_high_water_bytes: returns the peak bytes of wafer memory so far; None to omit it.
      clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        output_dir: str,
        shown: ShownSteps,
        examples_per_step: Optional[Quantity] = None,
        tokens_per_step: Optional[Quantity] = None,
        memory_high_water_bytes: Optional[Callable[[], float]] = None,
        clock: Clock = time.monotonic,
    ) -> None:
        quantities = {"examples_per_sec": examples_per_step, "tokens_per_sec": tokens_per_step}
        known = {tag: q for tag, q in quantities.items() if q is not None}
        self._per_run = {tag: q for tag, q in known.items() if isinstance(q, tf.Tensor)}
        self._per_step = {tag: int(q) for tag, q in known.items() if tag not in self._per_run}
        self._totals = dict.fromkeys(self._per_run, 0)
        self._output_dir = output_dir
        self._shown = shown
        self._memory_high_water_bytes = memory_high_water_bytes
        self._window = StepWindow(clock)

    def begin(self) -> None:
        """Opens the event file shared with TensorFlow's hooks."""
        self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)
        self._global_step = training_util._get_or_create_global_step_read()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Records the first step of the run."""
        self._shown.begin(int(session.run(self._global_step)))

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs({"step": self._global_step, **self._per_run})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Adds up the quantities and writes summaries if they are due."""
        results = run_values.results
        for tag in self._totals:
            self._totals[tag] += int(results[tag])
        due = any(int(results["step"]) + late in self._shown for late in (0, 1))
        if self._window.is_open and not due:
            return
        global_step = int(run_context.session.run(self._global_step))
        if not self._window.is_open:
            if global_step > self._shown.start:
                self._window.open(global_step)
            self._totals = dict.fromkeys(self._totals, 0)
        elif global_step in self._shown:
            self._write(global_step)

    def _write(self, global_step: int) -> None:
        window = self._window.close(global_step)
        if window is None:
            return
        steps, seconds = window
        values = {"global_step/sec": steps / seconds}
        values.update({tag: n * steps / seconds for tag, n in self._per_step.items()})
        values.update({tag: total / seconds for tag, total in self._totals.items()})
        self._totals = dict.fromkeys(self._totals, 0)
        if self._memory_high_water_bytes is not None:
            values["wafer/memory_high_water_bytes"] = float(self._memory_high_water_bytes())
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._writer.add_summary(summary, global_step)
