"""Hooks of a training run: stop on a signal, refuse NaN, record performance."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from cerebras_tf.checkpoints.reader import CheckpointReader
from cerebras_tf.collector import paused_collector
from cerebras_tf.console.progress import Clock, StepWindow
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.errors import NumericsError
from cerebras_tf.swarmx import job
from cerebras_tf.tf_compat.internals import training_util

_ONE_REQUEST_S = 2.0  # in which signals to a process of a job are the same request

Quantity = Union[int, tf.Tensor]


def exit_code_of_signal(signal_number: int) -> int:
    """Returns the shell's exit code for a process ended by a signal: 143 for SIGTERM."""
    return 128 + signal_number


class GracefulStopHook(tf.estimator.SessionRunHook):
    """Ends training after the current step when SIGINT, SIGTERM or SIGHUP arrives.

    Training then ends as usual and writes the last checkpoint. A second signal ends the process at
    once; in a job it must come some time after the first, because Slurm and the launcher may both
    forward one request. Use the hook as a context around training. On exit it restores the signal
    handlers, prints where the next run resumes, and raises, so that the process exits with 130, 143
    or 129:

        with GracefulStopHook(model_dir=estimator.model_dir) as stop:
            estimator.train(input_fn, hooks=[stop])

    Handlers are installed when the session is created, so a signal during compilation has its usual
    effect. Python runs signal handlers only between bytecodes of the main thread, which may be
    inside a long step; therefore a thread watches for signals through `signal.set_wakeup_fd`.
    Outside the main thread nothing is installed. An ignored SIGHUP (`nohup`) stays ignored.

    Args:
      abort: called with the exit code on the second signal; ends the process.
      model_dir: folder of the checkpoints; None if none are reported.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(
        self, abort: Callable[[int], Any] = os._exit, model_dir: Optional[str] = None
    ) -> None:
        self.signal_number: Optional[int] = None
        self._signalled_at = 0.0
        self._abort = abort
        self._model_dir = model_dir
        self._previous_handlers: dict[int, Any] = {}
        self._previous_wakeup_fd = -1
        self._write_end: Optional[socket.socket] = None
        self._watcher: Optional[threading.Thread] = None

    def __enter__(self) -> GracefulStopHook:
        return self

    def __exit__(
        self,
        exception_type: Optional[type[BaseException]],
        exception: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.restore()
        if exception_type in (None, KeyboardInterrupt, SystemExit):
            self._print_where_to_resume()
        if exception_type is None:
            self.raise_if_signalled()

    def _print_where_to_resume(self) -> None:
        if self.signal_number is None or self._model_dir is None:
            return
        found = CheckpointReader.latest(self._model_dir)
        where = "and no checkpoint was written; the same command starts from the beginning"
        if found:
            step = CheckpointReader.step_of(found)
            where = f"at step {step}; the same command resumes from {found}"
        _print(f"{signal.Signals(self.signal_number).name}: stopped {where}")

    def begin(self) -> None:
        """Installs the handlers, in the main thread only."""
        if self._watcher is not None or threading.current_thread() is not threading.main_thread():
            return
        read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        self._previous_wakeup_fd = signal.set_wakeup_fd(
            self._write_end.fileno(), warn_on_full_buffer=False
        )
        for number in self.SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._previous_handlers[number] = signal.signal(number, lambda *_: None)
        self._watcher = threading.Thread(
            target=self._watch, args=(read_end,), name="signal watcher", daemon=True
        )
        self._watcher.start()

    def _watch(self, read_end: socket.socket) -> None:
        """Receives one byte per signal, its number, until the other end is closed."""
        with read_end:
            while received := read_end.recv(1):
                if received[0] in self.SIGNALS:
                    self._receive(received[0])

    def _receive(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        if self.signal_number is not None:
            if job.folder() and time.monotonic() - self._signalled_at < _ONE_REQUEST_S:
                return
            _print(f"second {name}: stopping immediately")
            self._abort(exit_code_of_signal(signal_number))
            return
        self.signal_number, self._signalled_at = signal_number, time.monotonic()
        line_end = "\n" if sys.stderr.isatty() else ""  # a terminal has just shown ^C
        _print(
            f"{line_end}{name}: stopping after this step and writing a checkpoint; a second {name} "
            "stops immediately and loses the steps since the last checkpoint"
        )

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Asks the loop to stop if a signal has arrived."""
        if self.signal_number is not None:
            run_context.request_stop()

    def restore(self) -> None:
        """Restores the previous handlers, if any were replaced."""
        if self._watcher is None or self._write_end is None:
            return
        for number, handler in self._previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        self._write_end.close()
        self._watcher.join()
        self._watcher = None

    def raise_if_signalled(self) -> None:
        """Raises the exception of the signal that has arrived, if any.

        Raises:
          KeyboardInterrupt: SIGINT arrived.
          SystemExit: SIGTERM or SIGHUP arrived; the exit code is the shell's.
        """
        if self.signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal_number is not None:
            raise SystemExit(exit_code_of_signal(self.signal_number))


def _print(text: str) -> None:
    """Prints a line on stderr; ignores a closed terminal."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


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
        self._is_due = self._has_looked = self._has_frozen = False
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
        self._is_due = self._has_looked = self._has_frozen = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Waits for a full collection after the first step."""
        if self._is_due:
            self._is_due = False
            self._pause.close()
            gc.callbacks.append(self._collected)

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
