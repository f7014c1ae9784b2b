"""What the console shows of a run: named phases with their seconds, step lines, a progress bar.

What goes to tfevents, hooks.py writes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Optional

import tensorflow as tf

# tf.train has no public tensor that reads the step; its own hooks use this one. TF 2.15.1 is final.
from tensorflow.python.training import training_util
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

Clock = Callable[[], float]


class PhaseReporter:
    """Announces the phases of a run and keeps how long each took.

    Args:
      clock: a monotonic clock in seconds.
      announce_after_s: seconds after which a phase that still lasts is announced.

    Attributes:
      seconds: seconds by phase name, in the order the phases first ended.
    """

    def __init__(self, clock: Clock = time.monotonic, announce_after_s: float = 1.0) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._announce_after_s = announce_after_s

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Logs `NAME: 1.2 s` on exit, or `NAME: failed after 1.2 s`.

        A phase that lasts longer than `announce_after_s` is announced by `NAME ...`.

        Args:
          name: what is done, such as "capturing" or "compiling 12 layers". A phase entered again
            adds to its seconds.
        """
        announcement = threading.Timer(
            self._announce_after_s, tf.compat.v1.logging.info, ("%s ...", name)
        )
        announcement.daemon = True
        announcement.start()
        started = self._clock()
        outcome = "failed after "
        try:
            yield
            outcome = ""
        finally:
            announcement.cancel()
            announcement.join()  # or its line could come after the next
            elapsed_s = self._clock() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed_s
            tf.compat.v1.logging.info("%s: %s%.1f s", name, outcome, elapsed_s)


def format_rate(steps_per_s: float) -> str:
    """Formats a rate with three decimals, or three digits where it is below 0.1."""
    return f"{steps_per_s:.3f}" if steps_per_s >= 0.1 else f"{steps_per_s:.3g}"


class StepWindow:
    """The steps and seconds since the last report, starting when the first step has ended.

    The first step is left out because it also warms up caches and threads.
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
    """Prints a line every so many steps, and a progress bar with the time left on a terminal.

    The line reads `global_step = 50, loss = 7.30078125, rate = 0.492 steps/sec`; the rate is that
    of the steps since the last line. The bar is drawn on stderr, and only if that is a terminal.
    Turn tf.estimator's own lines off with `log_step_count_steps=None`, or they come as well.

    Args:
      loss: scalar tensor.
      every_n_steps: steps between lines, at multiples of it.
      last_step: global step at which training ends, for the bar; None where that is unknown.
      steps: steps to train from here, an alternative to `last_step`.
      clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        loss: Any,
        every_n_steps: int = 100,
        last_step: Optional[int] = None,
        steps: Optional[int] = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._loss = loss
        self._every_n_steps = every_n_steps
        self._last_step = last_step
        self._steps = steps
        self._clock = clock
        self._window = StepWindow(clock)
        self._first_step = 0
        self._started_s = 0.0
        self._reported_step = -1
        self._bar: Any = None
        self._terminal = contextlib.ExitStack()

    def begin(self) -> None:
        """Finds the tensor that reads the global step."""
        self._global_step = training_util._get_or_create_global_step_read()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Announces training and draws the bar."""
        self._first_step = self._reported_step = int(session.run(self._global_step))
        self._started_s = self._clock()
        last_step = self._last_step
        if last_step is None and self._steps is not None:
            last_step = self._first_step + self._steps
        until = "" if last_step is None else f" to {last_step}"
        tf.compat.v1.logging.info("training from step %d%s ...", self._first_step, until)
        if sys.stderr.isatty():
            self._terminal.enter_context(logging_redirect_tqdm([logging.getLogger("tensorflow")]))
            self._bar = self._terminal.enter_context(
                tqdm(initial=self._first_step, total=last_step, unit="step", dynamic_ncols=True)
            )

    def before_run(self, run_context: Any) -> Any:
        """Asks for the loss and the global step."""
        return tf.estimator.SessionRunArgs({"loss": self._loss, "step": self._global_step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Moves the bar and prints the line where one is due.

        The step fetched along with a run may be the one before or after its update, so it is read
        again wherever that matters.
        """
        fetched = int(run_values.results["step"])
        due = any((fetched + late) % self._every_n_steps == 0 for late in (0, 1))
        if self._bar is None and self._window.is_open and not due:
            return
        global_step = int(run_context.session.run(self._global_step))
        if self._bar is not None:
            self._bar.update(global_step - self._bar.n)
        if global_step % self._every_n_steps == 0 and global_step > self._reported_step:
            self._report(global_step, float(run_values.results["loss"]))
        if not self._window.is_open:
            self._window.open(global_step)

    def _report(self, global_step: int, loss: float) -> None:
        """Prints the line; 9 digits tell any two float32 losses apart."""
        steps, seconds = self._window.close(global_step) or (
            global_step - self._first_step,
            max(self._clock() - self._started_s, 1e-9),
        )
        self._reported_step = global_step
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
        tf.compat.v1.logging.info(
            "global_step = %d, loss = %.9g, rate = %s steps/sec",
            global_step,
            loss,
            format_rate(steps / seconds),
        )

    def end(self, session: Any) -> None:
        """Removes the bar and says how long training took."""
        self.close()
        steps = int(session.run(self._global_step)) - self._first_step
        elapsed_s = self._clock() - self._started_s
        tf.compat.v1.logging.info("training: %d steps in %.1f s", steps, elapsed_s)

    def close(self) -> None:
        """Removes the bar; for runs that end in an exception, where `end` is not called."""
        self._bar = None
        self._terminal.close()
