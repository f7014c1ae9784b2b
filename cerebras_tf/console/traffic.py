"""Reports traffic between memory and files and between wafers, and time waited for it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from cerebras_tf import quantities
from cerebras_tf.console import log
from cerebras_tf.memoryx.store import IoStats
from cerebras_tf.swarmx.swarm import Traffic


@dataclasses.dataclass(frozen=True)
class Moved:
    """The traffic of some steps."""

    tags: dict[str, float]
    line: str


# Reports two readings of a meter, given the steps and seconds between them.
Read = Callable[[Any, Any, int, float], Moved]
# Step, seconds, and what the meter returned.
Reading = tuple[int, float, Any]


class TrafficMeter:
    """Traffic of a run, and of the steps between two summaries.

    The first step, which fills the memory, is not counted. Neither is traffic after the last step:
    a checkpoint writes what a further step would have written later.

    Args:
        every_n_steps: steps between summaries, at multiples of it.
        meter: returns the traffic so far, a dataclass.
        read: makes a report of two such values.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        every_n_steps: int,
        meter: Callable[[], Any],
        read: Read,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_n_steps = every_n_steps
        self._meter = meter
        self._read = read
        self._clock = clock
        self._first: Reading | None = None
        self._last: Reading | None = None
        self._latest: Reading | None = None

    def after_step(self, step: int) -> dict[str, float] | None:
        """Counts a step; returns the scalars since the last summary if one is due."""
        now = self._latest = step, self._clock(), dataclasses.replace(self._meter())
        if self._first is None:
            self._first = self._last = now
        elif step % self._every_n_steps == 0 and self._last and step > self._last[0]:
            before, self._last = self._last, now
            return self._moved(before, now).tags
        return None

    def _moved(self, before: Reading, now: Reading) -> Moved:
        seconds = max(now[1] - before[1], 1e-9)
        return self._read(before[2], now[2], now[0] - before[0], seconds)

    def end(self) -> None:
        """Logs the traffic of the whole run."""
        now = self._latest
        if self._first is not None and now is not None and now[0] > self._first[0]:
            log.log_info("%s", self._moved(self._first, now).line)


def of_files(before: IoStats, now: IoStats, steps: int, seconds: float) -> Moved:
    """`memoryx/bytes_read_per_step`, `bytes_written_per_step` and `stalled_share`.

    `stalled_share` is the share of the time in which the wafer waited for files.
    """
    read = (now.bytes_read - before.bytes_read) / steps
    written = (now.bytes_written - before.bytes_written) / steps
    stalled = (now.stalled_s - before.stalled_s) / seconds
    return Moved(
        {
            "memoryx/bytes_read_per_step": read,
            "memoryx/bytes_written_per_step": written,
            "memoryx/stalled_share": stalled,
        },
        f"memoryx: {read / 1e9:.3g} GB read, {written / 1e9:.3g} GB written per step; waited for "
        f"files {100 * stalled:.0f} % of the time",
    )


def of_wafers(before: Traffic, now: Traffic, steps: int, seconds: float) -> Moved:
    """`swarmx/bytes_sent_per_step`, `bytes_received_per_step` and `hidden_share`, of one wafer.

    `hidden_share` is the share of the transfer time in which computing did not wait.
    """
    sent = (now.sent_bytes - before.sent_bytes) / steps
    received = (now.received_bytes - before.received_bytes) / steps
    busy_s, waited_s = now.busy_s - before.busy_s, now.waited_s - before.waited_s
    hidden = 1 - min(waited_s / max(busy_s, 1e-9), 1.0)
    return Moved(
        {
            "swarmx/bytes_sent_per_step": sent,
            "swarmx/bytes_received_per_step": received,
            "swarmx/hidden_share": hidden,
        },
        f"swarmx: {sent / 1e9:.3g} GB sent, {received / 1e9:.3g} GB received per step by this "
        f"wafer; this took {quantities.seconds(busy_s / steps)}, of which computation hid "
        f"{100 * hidden:.0f} %",
    )
