"""How fast a run is."""

from __future__ import annotations

import time


class RateTracker:
    """Samples per second since it was made, and between two logged steps."""

    def __init__(self) -> None:
        self._count = self._partial_count = 0
        self._start = self._last = time.perf_counter()

    def add(self, count: int) -> None:
        """Counts samples."""
        self._partial_count += count

    def rate(self) -> float:
        """Samples per second since the last call."""
        now = time.perf_counter()
        found = self._partial_count / max(now - self._last, 1e-9)
        self._last, self._count, self._partial_count = now, self.total_count, 0
        return found

    def global_rate(self) -> float:
        """Samples per second in all."""
        return self.total_count / max(self.elapsed_seconds(), 1e-9)

    @property
    def total_count(self) -> int:
        """Samples in all."""
        return self._count + self._partial_count

    def elapsed_seconds(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self._start
