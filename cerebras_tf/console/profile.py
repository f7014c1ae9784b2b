"""Profiles steps of a training on the wafer: a trace file, tables, and what bounds the step."""

from __future__ import annotations

import time
from pathlib import Path

from cerebras_tf.console.log import get_logger, log_info
from cerebras_tf.runtime.profile_tables import tables
from cerebras_tf.runtime.profiler import LOOP_STEP, MAX_CALLS, Profiler, write_trace

FOLDER = "profile"
# Steps that are not recorded: kernels are compiled, memory is touched first, and rates settle.
WARM_UP_STEPS = 2
# Side of the matrices whose product gives the limit of arithmetic.
_SIDE = 2048


class StepProfile:
    """Records steps after the first ones, then writes `profile/trace.json` and logs its tables.

    Of several wafers, the first one's are recorded.

    Args:
        steps: how many to record.
        model_dir: where the folder `profile` is made.
    """

    def __init__(self, profiler: Profiler, steps: int, model_dir: str) -> None:
        self._profiler, self._steps = profiler, steps
        self._path = Path(model_dir) / FOLDER / "trace.json"
        self._seen = self._recorded = 0
        self._before = 0.0

    def after_step(self) -> None:
        """Begins, counts and ends."""
        now = time.perf_counter()
        self._seen += 1
        if self._profiler.is_recording:
            self._recorded += 1
            name = f"step {self._recorded}"
            self._profiler.timeline.add(LOOP_STEP, name, self._before, now)
            if self._profiler.is_full and self._recorded < self._steps:
                get_logger().warning(
                    "profile: %d of %d steps are recorded, as these have %d calls of kernels",
                    *(self._recorded, self._steps, MAX_CALLS),
                )
                self._steps = self._recorded
            if self._recorded == self._steps:
                self._finish()
        elif self._seen == WARM_UP_STEPS:
            self._profiler.start()
        self._before = time.perf_counter()

    def end(self) -> None:
        """Writes what was recorded if training ended early."""
        if self._recorded < self._steps:
            self._finish()

    def _finish(self) -> None:
        self._profiler.stop()
        if not self._recorded:
            get_logger().warning(
                "profile: training ended within the %d warm-up steps; nothing was recorded",
                WARM_UP_STEPS,
            )
            return
        if self._recorded < self._steps:
            get_logger().warning(
                "profile: training ended when %d of %d steps were recorded, after %d warm-up steps",
                *(self._recorded, self._steps, WARM_UP_STEPS),
            )
        write_trace(self._profiler.timeline, self._path)
        limits = self._profiler.limits(_SIDE)
        log_info("profile: %s\n%s", self._path, tables(self._profiler, self._recorded, *limits))
