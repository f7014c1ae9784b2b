"""Reports what weights and optimizer state on files cost: bytes moved and time waited for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Private API of TF 2.15: the tensor that reads the step, which TensorFlow's own hooks use.
from tensorflow.python.training import training_util

from cerebras_tf.memoryx.store import Traffic


class TrafficHook(tf.estimator.SessionRunHook):
    """Writes `memoryx/bytes_read_per_step`, `bytes_written_per_step` and `stalled_share`.

    `stalled_share` is the part of the time for which the wafer waited for files. A line with the
    same figures of the whole run ends it. The first step is left out: it fills the memory.

    Args:
        output_dir: folder of the event files; None writes none.
        every_n_steps: steps between summaries, at multiples of it.
        traffic: what was moved so far.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        output_dir: str | None,
        every_n_steps: int,
        traffic: Callable[[], Traffic],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output_dir = output_dir
        self._every_n_steps = every_n_steps
        self._traffic = traffic
        self._clock = clock
        self._first: tuple[int, float, Traffic] | None = None
        self._last: tuple[int, float, Traffic] | None = None

    def begin(self) -> None:
        """Opens the event file shared with TensorFlow's hooks."""
        self._global_step = training_util._get_or_create_global_step_read()
        self._writer = None
        if self._output_dir is not None:
            self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes summaries where they are due."""
        now = self._now(run_context.session)
        if self._first is None:
            self._first = self._last = now
        elif now[0] % self._every_n_steps == 0 and self._last and now[0] > self._last[0]:
            self._write(self._last, now)
            self._last = now

    def _now(self, session: Any) -> tuple[int, float, Traffic]:
        step = int(session.run(self._global_step))
        return step, self._clock(), dataclasses.replace(self._traffic())

    def _write(self, before: tuple[int, float, Traffic], now: tuple[int, float, Traffic]) -> None:
        if self._writer is None:
            return
        read, written, stalled = _between(before, now)
        values = {
            "memoryx/bytes_read_per_step": read,
            "memoryx/bytes_written_per_step": written,
            "memoryx/stalled_share": stalled,
        }
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._writer.add_summary(summary, now[0])

    def end(self, session: Any) -> None:
        """Says what the whole run moved."""
        now = self._now(session)
        if self._first is None or now[0] <= self._first[0]:
            return
        read, written, stalled = _between(self._first, now)
        tf.compat.v1.logging.info(
            "memoryx: %.3g GB read, %.3g GB written a step; waited for files %.0f %% of the time",
            read / 1e9,
            written / 1e9,
            100 * stalled,
        )


def _between(
    before: tuple[int, float, Traffic], now: tuple[int, float, Traffic]
) -> tuple[float, float, float]:
    """(bytes read a step, bytes written a step, share of the time stalled)."""
    steps, seconds = now[0] - before[0], max(now[1] - before[1], 1e-9)
    read = now[2].bytes_read - before[2].bytes_read
    written = now[2].bytes_written - before[2].bytes_written
    return read / steps, written / steps, (now[2].stalled_s - before[2].stalled_s) / seconds
