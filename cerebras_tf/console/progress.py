"""What the console shows of a run: named phases with their seconds, step lines, a progress bar.

hooks.py and shown_steps.py write event files.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Optional

import tensorflow as tf
from tqdm import tqdm

from cerebras_tf.console.bar import progress_bar
from cerebras_tf.console.log import log_info
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.tf_compat.internals import training_util

Clock = Callable[[], float]


class PhaseReporter:
    """Logs the phases of a run and keeps how long each took.

    Args:
      clock: a monotonic clock in seconds.
      log_start_after_s: seconds after which the start of a phase that still runs is logged.

    Attributes:
      seconds: seconds by phase name, in the order the phases first ended.
    """

    def __init__(self, clock: Clock = time.monotonic, log_start_after_s: float = 1.0) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._log_start_after_s = log_start_after_s

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Logs `NAME ...` of a phase that lasts, and on exit `NAME: 1.2 s`.

        A phase shorter than `log_start_after_s` is not logged. One that raises is logged as `NAME:
        failed after 1.2 s`, however short.

        Args:
          name: what is done, such as "capturing" or "compiling 12 layers". A phase entered again
            adds to its seconds.
        """
        timer = threading.Timer(self._log_start_after_s, log_info, ("%s ...", name))
        timer.daemon = True
        timer.start()
        started = self._clock()
        outcome = "failed after "
        try:
            yield
            outcome = ""
        finally:
            timer.cancel()
            timer.join()  # or its line could come after the next
            elapsed_s = self._clock() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed_s
            if outcome or elapsed_s >= self._log_start_after_s:
                log_info("%s: %s%.1f s", name, outcome, elapsed_s)


def format_rate(steps_per_s: float) -> str:
    """Formats a rate with three decimals, or with three digits if it is below 0.1."""
    return f"{steps_per_s:.3f}" if steps_per_s >= 0.1 else f"{steps_per_s:.3g}"


class TrainingClock:
    """A clock that stops during evaluations, so that rates are those of training.

    Args:
      clock: a monotonic clock in seconds.

    Attributes:
      paused_s: seconds that it has stopped so far.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.paused_s = 0.0

    def __call__(self) -> float:
        """Returns the time in seconds; meaningful only outside `paused`."""
        return self._clock() - self.paused_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock within the block."""
        started = self._clock()
        try:
            yield
        finally:
            self.paused_s += self._clock() - started


class StepWindow:
    """The steps and seconds since the last report, starting when the first step has ended.

    The first step does not count because it also warms up caches and threads.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._step = 0
        self._time_s: Optional[float] = None

    @property
    def is_open(self) -> bool:
        """Whether a window has begun."""
        return self._time_s is not None

    def open(self, global_step: int) -> None:
        """Begins a window at `global_step`, now."""
        self._step, self._time_s = global_step, self._clock()

    def close(self, global_step: int) -> Optional[tuple[int, float]]:
        """Returns (steps, seconds) of the window and opens the next, or None if it has no steps."""
        if self._time_s is None or global_step <= self._step:
            return None
        steps, started = global_step - self._step, self._time_s
        self.open(global_step)
        return steps, max(self._time_s - started, 1e-9)


class ProgressHook(tf.estimator.SessionRunHook):
    """Prints a line for each step that is shown, and a progress bar on a terminal.

    The line reads `global_step = 50, loss = 7.30078125, rate = 0.492 steps/sec, 252 tokens/sec,
    03:23 left`; the rate is that of the steps since the last line. The time left is omitted if the
    bar shows it. The bar is drawn on stderr if that is a terminal. `log_step_count_steps=None`
    turns off tf.estimator's own lines.

    Args:
      loss: scalar tensor.
      tokens_per_step: tokens in a step; None to omit their rate.
      about: returns the lines about the model that are logged before training.
      clock: a monotonic clock in seconds, which stops during evaluations; None for one that does
        not stop.
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
        self._shown = shown
        self._tokens_per_step = tokens_per_step
        self._about = about
        self._clock = clock or TrainingClock()
        self._window = StepWindow(self._clock)
        self._started_s = 0.0
        self._paused_s = 0.0
        self._reported_step = -1
        self._bar: Any = None
        self._terminal = contextlib.ExitStack()

    def begin(self) -> None:
        """Finds the tensor that reads the global step."""
        self._global_step = training_util._get_or_create_global_step_read()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Logs the first step and draws the bar."""
        start = self._reported_step = int(session.run(self._global_step))
        self._shown.begin(start)
        self._started_s = self._clock()
        last = self._shown.last
        if self._about is not None:
            for line in self._about().splitlines():
                log_info("%s", line)
        log_info("training from step %d%s ...", start, "" if last is None else f" to {last}")
        if sys.stderr.isatty():
            self._bar = self._terminal.enter_context(progress_bar(last, "step", start))

    def before_run(self, run_context: Any) -> Any:
        """Asks for the loss and the global step."""
        return tf.estimator.SessionRunArgs({"loss": self._loss, "step": self._global_step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Moves the bar, and prints a line if this step is shown.

        The step fetched along with a run may be the one before or after its update, so it is read
        again wherever that matters.
        """
        fetched = int(run_values.results["step"])
        due = any(fetched + late in self._shown for late in (0, 1))
        if self._bar is None and self._window.is_open and not due:
            return
        global_step = int(run_context.session.run(self._global_step))
        if self._bar is not None:
            self._exclude_pauses()
            self._bar.update(global_step - self._bar.n)
        if global_step in self._shown and global_step > self._reported_step:
            self._report(global_step, float(run_values.results["loss"]))
        if not self._window.is_open and global_step > self._shown.start:
            self._window.open(global_step)

    def _exclude_pauses(self) -> None:
        """Moves the times that the bar computes its rate from by those of new evaluations."""
        paused_s, self._paused_s = self._clock.paused_s - self._paused_s, self._clock.paused_s
        self._bar.start_t += paused_s
        self._bar.last_print_t += paused_s

    def _report(self, global_step: int, loss: float) -> None:
        """Prints the line; 9 digits distinguish any two float32 losses."""
        window = self._window.close(global_step)
        steps, seconds = window or (
            global_step - self._shown.start,
            max(self._clock() - self._started_s, 1e-9),
        )
        self._reported_step = global_step
        rate = steps / seconds
        more = ""
        if self._tokens_per_step is not None:
            more += f", {rate * self._tokens_per_step:.0f} tokens/sec"
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
        elif window and self._shown.last is not None and self._shown.last > global_step:
            more += f", {tqdm.format_interval((self._shown.last - global_step) / rate)} left"
        line = "global_step = %d, loss = %.9g, rate = %s steps/sec%s"
        log_info(line, global_step, loss, format_rate(rate), more)

    def end(self, session: Any) -> None:
        """Removes the bar and logs how long training took."""
        self.close()
        steps = int(session.run(self._global_step)) - self._shown.start
        log_info("training: %d steps in %.1f s", steps, self._clock() - self._started_s)

    def close(self) -> None:
        """Removes the bar; for runs that end in an exception, where `end` is not called."""
        self._bar = None
        self._terminal.close()


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
