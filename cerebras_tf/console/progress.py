"""What the console shows of a run: named phases with their seconds, step lines, a progress bar.

estimator/console_hooks.py calls it from tf.estimator's loop.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Optional

from tqdm import tqdm

from cerebras_tf.console.bar import progress_bar
from cerebras_tf.console.log import log_info
from cerebras_tf.console.shown_steps import ShownSteps
from cerebras_tf.quantities import counted

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


class ProgressLines:
    """Prints a line for each step that is shown, and a progress bar on a terminal.

    The line reads `global_step = 50, loss = 7.30078125, rate = 0.492 steps/sec, 252 tokens/sec,
    03:23 left`; the rate is that of the steps since the last line. The time left is omitted if the
    bar shows it. The bar is drawn on stderr if that is a terminal.

    Args:
      tokens_per_step: tokens in a step; None to omit their rate, or to give tokens with each step.
      clock: a monotonic clock in seconds, which stops during evaluations; None for one that does
        not stop.
    """

    def __init__(
        self,
        shown: ShownSteps,
        tokens_per_step: Optional[int] = None,
        clock: Optional[TrainingClock] = None,
    ) -> None:
        self._shown = shown
        self._tokens_per_step = tokens_per_step
        self._tokens = 0  # of the window
        self._clock = clock or TrainingClock()
        self._window = StepWindow(self._clock)
        self._started_s = 0.0
        self._paused_s = 0.0
        self._reported_step = -1
        self._bar: Any = None
        self._terminal = contextlib.ExitStack()

    def begin(self, start: int, about: str = "") -> None:
        """Logs the first step and draws the bar.

        Args:
          about: lines about the model, which are logged first.
        """
        self._reported_step = start
        self._shown.begin(start)
        self._started_s = self._clock()
        last = self._shown.last
        for line in about.splitlines():
            log_info("%s", line)
        log_info("training from step %d%s ...", start, "" if last is None else f" to {last}")
        if sys.stderr.isatty():
            self._bar = self._terminal.enter_context(progress_bar(last, "step", start))

    def reads(self, step: int) -> bool:
        """Whether `update` needs the exact global step, which may be `step` or the one after."""
        due = any(step + late in self._shown for late in (0, 1))
        return self._bar is not None or not self._window.is_open or due

    def update(self, global_step: int, loss: float, tokens: Optional[int] = None) -> None:
        """Moves the bar, and prints a line if this step is shown.

        Args:
          tokens: of this step, where `tokens_per_step` is None.
        """
        self._tokens += tokens or 0
        if self._bar is not None:
            self._exclude_pauses()
            self._bar.update(global_step - self._bar.n)
        if global_step in self._shown and global_step > self._reported_step:
            self._report(global_step, loss)
        if not self._window.is_open and global_step > self._shown.start:
            self._window.open(global_step)
            self._tokens = 0

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
        elif self._tokens:
            more += f", {self._tokens / seconds:.0f} tokens/sec"
        self._tokens = 0
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
        elif window and self._shown.last is not None and self._shown.last > global_step:
            more += f", {tqdm.format_interval((self._shown.last - global_step) / rate)} left"
        line = "global_step = %d, loss = %.9g, rate = %s steps/sec%s"
        log_info(line, global_step, loss, format_rate(rate), more)

    def end(self, global_step: int) -> None:
        """Removes the bar and logs how long training took."""
        self.close()
        steps = global_step - self._shown.start
        log_info("training: %s in %.1f s", counted(steps, "step"), self._clock() - self._started_s)

    def close(self) -> None:
        """Removes the bar; for runs that end in an exception, where `end` is not called."""
        self._bar = None
        self._terminal.close()
