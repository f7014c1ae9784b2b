"""Who has the wafer: one client at a time, first come, first served.

A pure state machine: callers pass the time in seconds, of a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from cerebras_tf.errors import SystemUnreachableError


@dataclass
class Holder:
    """The client that has the wafer.

    Attributes:
        lease: names the lease.
        label: of the client, shown to others.
        since: when it got the wafer.
        lost_at: when its connection ended; None while it has one.
    """

    lease: str
    label: str
    since: float
    lost_at: Optional[float] = None


class Leases:
    """The client that has the wafer, and those that wait for it.

    Args:
        keep_s: seconds for which a lease is kept after its connection ended.
        max_queue: clients that may wait; more are refused.
    """

    def __init__(self, keep_s: float = 120.0, max_queue: int = 16) -> None:
        self.keep_s, self._max_queue = keep_s, max_queue
        self.holder: Optional[Holder] = None
        self._queue: dict[str, str] = {}  # label by lease, in order

    def ask(self, lease: str, label: str) -> None:
        """Adds a client to the queue.

        Raises:
            SystemUnreachableError: the queue is full.
        """
        if len(self._queue) >= self._max_queue:
            raise SystemUnreachableError(
                f"wafer: at most {self._max_queue} clients may wait for it. Received: one more. "
                "Try again later."
            )
        self._queue[lease] = label

    def position(self, lease: str) -> int:
        """Place in the queue, from 1; 0 for the client that has the wafer; -1 for others."""
        if self.holder is not None and self.holder.lease == lease:
            return 0
        return list(self._queue).index(lease) + 1 if lease in self._queue else -1

    def lose(self, lease: str, now: float) -> None:
        """The connection of a client has ended: its lease is kept, or its place is given up."""
        self._queue.pop(lease, None)
        if self.holder is not None and self.holder.lease == lease:
            self.holder.lost_at = now

    def resume(self, lease: str) -> bool:
        """A client is connected again; returns whether it still has the wafer."""
        if self.holder is None or self.holder.lease != lease:
            return False
        self.holder.lost_at = None
        return True

    def release(self, lease: str) -> None:
        """A client gives the wafer back, or its place in the queue."""
        self._queue.pop(lease, None)
        if self.holder is not None and self.holder.lease == lease:
            self.holder = None

    def advance(self, now: float) -> None:
        """Ends a lease that was kept long enough, and gives a free wafer to the next client."""
        holder = self.holder
        lost_at = None if holder is None else holder.lost_at
        if lost_at is not None and now - lost_at >= self.keep_s:
            self.holder = None
        if self.holder is None and self._queue:
            lease = next(iter(self._queue))
            self.holder = Holder(lease, self._queue.pop(lease), now)

    @property
    def waiting(self) -> list[str]:
        """Labels of the clients that wait, in order."""
        return list(self._queue.values())
