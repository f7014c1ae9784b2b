"""Communication between wafers, and its form for a single wafer.

Every process of a job makes the same calls in the same order. The order of sums depends only on the
number of wafers, so a job is reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# Called after a transfer, by the thread that made it: its name, when it began and ended (of
# time.perf_counter), its bytes.
Observer = Callable[[str, float, float, int], None]


@dataclass
class Traffic:
    """Bytes that a wafer has sent to and received from others so far.

    Attributes:
        sent_bytes: bytes sent to other wafers.
        received_bytes: bytes received from them.
        busy_s: seconds of transfers.
        waited_s: seconds in which computing has waited for them.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class Pending(Protocol):
    """A transfer that has been started."""

    def wait(self) -> None:
        """Returns when it is complete; the array must not be used before.

        Raises:
            SwarmError: it failed.
        """


class Swarm(Protocol):
    """The wafers of a job.

    Attributes:
        rank: number of this wafer, from 0.
    """

    rank: int
    size: int

    def start_mean(self, array: Array, root: Optional[int] = None) -> Pending:
        """Replaces an array by the mean of the wafers' arrays, in the background.

        Args:
            array: of one shape and floating dtype on all wafers, in C order; written in place.
            root: wafer that gets the mean, the content on others is undefined; None for all.
        """

    def start_copy(self, array: Array, root: int) -> Pending:
        """Replaces an array by that of one wafer, in the background.

        Args:
            array: of one shape and dtype on all wafers, in C order; written in place elsewhere.
        """

    def gather(self, array: Array) -> Array:
        """The arrays of all wafers [size, ...], by rank, on every wafer; for small arrays.

        Raises:
            SwarmError: shapes differ.
        """

    def objects(self, item: Any) -> list[Any]:
        """The objects of all wafers, by rank, on every wafer. They must be picklable."""

    def observe(self, observer: Observer) -> None:
        """Calls a function after every mean and copy from now on."""

    @property
    def traffic(self) -> Traffic:
        """Bytes and times so far."""


class _Arrived:
    def wait(self) -> None:
        """Returns at once."""


class Alone:
    """The swarm of a single wafer."""

    rank = 0
    size = 1

    def start_mean(self, array: Array, root: Optional[int] = None) -> Pending:
        return _Arrived()

    def start_copy(self, array: Array, root: int) -> Pending:
        return _Arrived()

    def gather(self, array: Array) -> Array:
        return np.asarray(array)[None]

    def objects(self, item: Any) -> list[Any]:
        return [item]

    def observe(self, observer: Observer) -> None:
        pass

    @property
    def traffic(self) -> Traffic:
        return Traffic()


def total(swarm: Swarm, array: Array) -> Array:
    """The sum of the wafers' arrays, with the same bits on all wafers."""
    parts = swarm.gather(array)
    result = np.array(parts[0])
    for part in parts[1:]:
        result += part
    return result
