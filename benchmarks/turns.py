"""What a side of the benchmark `training` measures in its turns."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass


@dataclass
class Turn:
    """What is known of a turn.

    Attributes:
        step_s: seconds of each step.
        cpu_s: CPU seconds of each step, of all threads.
        loss: loss of the last step.
        peak_bytes: the most memory that the side's process had resident so far.
        first_step_s: seconds from the start of the side's work to the end of its first step.
        stalled_s: seconds for which the wafer waited for files.
        moved: bytes read and written, of files.
        sgemm: speed of matrix products around the turn in FLOP/s; filled in by `measure`.
    """

    step_s: list[float]
    cpu_s: list[float]
    loss: float
    peak_bytes: int = 0
    first_step_s: float = 0.0
    stalled_s: float = 0.0
    moved: int = 0
    sgemm: float = 0.0


class Turns:
    """The clocks of a side.

    Args:
        started: when its work began, of `time.perf_counter`.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._first_step_s = 0.0
        self._ends: list[tuple[float, float]] = []

    def begin(self) -> None:
        """A turn begins."""
        self._ends = []
        self.note()

    def note(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        self._first_step_s = self._first_step_s or now - self._started
        self._ends.append((now, time.process_time()))

    def ended(self, loss: float) -> Turn:
        """The turn that ends."""
        step_s, cpu_s = (
            [end - start for start, end in zip(clock, clock[1:])] for clock in zip(*self._ends)
        )
        # Kilobytes, on Linux.
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Turn(step_s, cpu_s, loss, peak, self._first_step_s)
