"""Hooks of tf.estimator's loop that report: console, summaries, profile, traffic, loggers."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.console.bar import progress_bar
from cerebras_tf.console.loggers import CSV, WANDB, Logger, scalar_loggers
from cerebras_tf.console.profile import StepProfile
from cerebras_tf.console.progress import ProgressLines, TrainingClock
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.console.traffic import Read, TrafficMeter
from cerebras_tf.runtime.profiler import Profiler
from cerebras_tf.tf_compat.internals import training_util


class ProgressHook(tf.estimator.SessionRunHook):
    """Prints lines and a progress bar; see ProgressLines.

    `log_step_count_steps=None` turns off tf.estimator's own lines.

    Args:
      loss: scalar tensor.
      tokens_per_step: tokens in a step; None to omit their rate.
      about: returns the lines about the model that are logged before training.
      clock: see ProgressLines.
    """

    def __init__(
        self,
        loss: Any,
        shown: ShownSteps,
        tokens_per_step: Optional[int] = None,
        about: Optional[Callable[[], str]] = None,
        clock: Optional[TrainingClock] = None,
    ) -> None:
        self._loss = loss
        self._about = about
        self._lines = ProgressLines(shown, tokens_per_step, clock)

    def begin(self) -> None:
        """Finds the tensor that reads the global step."""
        self._global_step = training_util._get_or_create_global_step_read()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Logs the first step and draws the bar."""
        start = int(session.run(self._global_step))
        self._lines.begin(start, "" if self._about is None else self._about())

    def before_run(self, run_context: Any) -> Any:
        """Asks for the loss and the global step."""
        return tf.estimator.SessionRunArgs({"loss": self._loss, "step": self._global_step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Moves the bar, and prints a line if this step is shown.

        The step fetched along with a run may be the one before or after its update, so it is read
        again wherever that matters.
        """
        found = run_values.results
        if self._lines.reads(int(found["step"])):
            step = int(run_context.session.run(self._global_step))
            self._lines.update(step, float(found["loss"]))

    def end(self, session: Any) -> None:
        """Removes the bar and logs how long training took."""
        self._lines.end(int(session.run(self._global_step)))

    def close(self) -> None:
        """Removes the bar; for runs that end in an exception, where `end` is not called."""
        self._lines.close()


class EvaluationBarHook(tf.estimator.SessionRunHook):
    """Draws a bar of the batches of an evaluation, if stderr is a terminal.

    Args:
        steps: maximum number of batches; None for all.
        dataset: returns the batches, to count them.
    """

    def __init__(self, steps: Optional[int], dataset: Callable[[], Any]) -> None:
        self._steps = steps
        self._dataset = dataset
        self._count: Any = None
        self._bar: Any = None
        self._terminal = contextlib.ExitStack()

    def begin(self) -> None:
        """Makes the tensor that counts the batches."""
        batches = self._dataset()
        if isinstance(batches, tf.data.Dataset) and sys.stderr.isatty():
            self._count = tf.data.experimental.cardinality(batches)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Draws the bar."""
        count = -1 if self._count is None else int(session.run(self._count))
        counts = [self._steps, count if count >= 0 else None]  # unknown and infinite are below 0
        total = min((each for each in counts if each is not None), default=None)
        self._bar = self._terminal.enter_context(progress_bar(total, "batch", text="evaluation"))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Moves the bar."""
        self._bar.update()

    def end(self, session: Any) -> None:
        """Removes the bar."""
        self.close()

    def close(self) -> None:
        """Removes the bar; for runs that end in an exception, where `end` is not called."""
        self._terminal.close()


class SummaryHook(tf.estimator.SessionRunHook):
    """Writes the summaries of the steps that are shown.

    Args:
        scaffold: has the summary operation, once it is finalized.
    """

    def __init__(self, scaffold: Any, output_dir: str, shown: ShownSteps) -> None:
        self._scaffold = scaffold
        self._output_dir = output_dir
        self._shown = shown
        self._step = 0
        self._asked = False

    def begin(self) -> None:
        """Opens the event file shared with TensorFlow's hooks."""
        self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)
        self._global_step = training_util._get_or_create_global_step_read()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Records the start, so that TensorBoard drops later steps of a lost session."""
        self._step = int(session.run(self._global_step))
        self._shown.begin(self._step)
        started = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._writer.add_session_log(started, self._step + 1)

    def before_run(self, run_context: Any) -> Any:
        """Fetches the summaries if the next step is shown."""
        fetches = {"step": self._global_step}
        self._asked = self._step + 1 in self._shown and self._scaffold.summary_op is not None
        if self._asked:
            fetches["summary"] = self._scaffold.summary_op
        return tf.estimator.SessionRunArgs(fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes the summaries, unless the run made no step.

        The step fetched along with a run may be the one before or after its update, so it is read
        again wherever that matters.
        """
        before, self._step = self._step, int(run_values.results["step"])
        if self._asked or any(self._step + late in self._shown for late in (1, 2)):
            self._step = int(run_context.session.run(self._global_step))
        if self._asked and self._step > before:
            found = run_values.results["summary"]
            for summary in found if isinstance(found, list) else [found]:
                self._writer.add_summary(summary, self._step)

    def end(self, session: Any) -> None:
        """Flushes the event file."""
        self._writer.flush()


class ProfileHook(tf.estimator.SessionRunHook):
    """Profiles steps; see StepProfile."""

    def __init__(self, profiler: Profiler, steps: int, model_dir: str) -> None:
        self._profile = StepProfile(profiler, steps, model_dir)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts a step."""
        self._profile.after_step()

    def end(self, session: Any) -> None:
        """Writes what was recorded if training ended early."""
        self._profile.end()


class TrafficHook(tf.estimator.SessionRunHook):
    """Writes summaries of traffic, and logs the totals of the run at the end; see TrafficMeter.

    Args:
        output_dir: folder of the event files; None writes none.
    """

    def __init__(
        self,
        output_dir: Optional[str],
        every_n_steps: int,
        meter: Callable[[], Any],
        read: Read,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output_dir = output_dir
        self._meter = TrafficMeter(every_n_steps, meter, read, clock)

    def begin(self) -> None:
        """Opens the event file shared with TensorFlow's hooks."""
        self._global_step = training_util._get_or_create_global_step_read()
        self._writer = None
        if self._output_dir is not None:
            self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes summaries if they are due."""
        step = int(run_context.session.run(self._global_step))
        tags = self._meter.after_step(step)
        if tags is None or self._writer is None:
            return
        summary = tf.compat.v1.Summary()
        for tag, value in tags.items():
            summary.value.add(tag=tag, simple_value=value)
        self._writer.add_summary(summary, step)

    def end(self, session: Any) -> None:
        """Logs the traffic of the whole run."""
        self._meter.end()


@contextlib.contextmanager
def logging_scalars(
    names: Sequence[str], model_dir: str, folder: str, prefix: str, config: Mapping[str, Any]
) -> Iterator[None]:
    """Within: scalars written to the event file of a folder are also logged.

    Args:
        names: the loggers, of the option `loggers`.
        folder: of the event file, model_dir or a folder in it.
        prefix: see WandbRun.
        config: parameters of the model.
    """
    if CSV not in names and WANDB not in names:
        yield
        return
    cache, own = tf.compat.v1.summary.FileWriterCache, os.path.abspath(folder)
    opened: list[Any] = []
    ends, original = contextlib.ExitStack(), cache.get

    def get(logdir: str) -> Any:
        """The writer of a folder; loggers start with it, so that a refused run starts none."""
        writer = original(logdir)
        if os.path.abspath(logdir) == own and not opened:
            opened.append(writer)
            loggers = scalar_loggers(names, model_dir, folder, prefix, config)
            for name, wrap in (("add_summary", _with_loggers), ("add_session_log", _with_restarts)):
                ends.callback(vars(writer).pop, name)
                setattr(writer, name, wrap(getattr(writer, name), loggers))
            for logger in loggers:
                ends.callback(logger.close)
        return writer

    with ends:
        ends.callback(setattr, cache, "get", staticmethod(original))
        cache.get = staticmethod(get)
        yield


def _with_loggers(add_summary: Callable[..., Any], loggers: Sequence[Logger]) -> Any:
    def add(summary: Any, global_step: Any = None) -> None:
        add_summary(summary, global_step)
        if isinstance(summary, bytes):
            summary = tf.compat.v1.Summary.FromString(summary)
        values = {
            value.tag: float(value.simple_value)
            for value in summary.value
            if value.HasField("simple_value")
        }
        for logger in loggers if values else ():
            logger.log(int(global_step), values)

    return add


def _with_restarts(add_session_log: Callable[..., Any], loggers: Sequence[Logger]) -> Any:
    def add(session_log: Any, global_step: Any = None) -> None:
        add_session_log(session_log, global_step)
        if session_log.status == tf.compat.v1.SessionLog.START:
            for logger in loggers:
                logger.restart(int(global_step))

    return add
