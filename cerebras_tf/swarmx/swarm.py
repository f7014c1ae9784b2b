"""What wafers do together, and the form of it for one wafer, which is nothing.

Every process of a job makes the same calls in the same order. Sums are taken in an order that
follows from the number of wafers alone, so a job repeats bit for bit.
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
        busy_s: seconds in which means or copies were on their way.
        waited_s: seconds of these that computing has waited for.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class Pending(Protocol):
    """Something that is on its way."""

    def wait(self) -> None:
        """Returns when it has arrived; the array must not be touched before.

        Raises:
            SwarmError: it did not arrive.
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
            root: wafer that gets the mean, others keep no particular content; None for all.
        """

    def start_copy(self, array: Array, root: int) -> Pending:
        """Replaces an array by that of one wafer, in the background.

        Args:
            array: of one shape and dtype on all wafers, in C order; written in place elsewhere.
        """

    def gather(self, array: Array) -> Array:
        """The arrays of all wafers [size, ...], in their order, on all of them; for small ones.

        Raises:
            SwarmError: shapes differ.
        """

    def objects(self, item: Any) -> list[Any]:
        """What all wafers gave, in their order, on all of them; anything that can be pickled."""

    def observe(self, observer: Observer) -> None:
        """Calls a function after every mean and copy from now on."""

    @property
    def traffic(self) -> Traffic:
        """Bytes and times so far."""


class _Arrived:
    def wait(self) -> None:
        """Nothing is on its way."""


class Alone:
    """The swarm of one wafer: every mean is what it was."""

    rank = 0
    size = 1

    def start_mean(self, array: Array, root: Optional[int] = None) -> Pending:
        """See Swarm.start_mean."""
        return _Arrived()

    def start_copy(self, array: Array, root: int) -> Pending:
        """See Swarm.start_copy."""
        return _Arrived()

    def gather(self, array: Array) -> Array:
        """See Swarm.gather."""
        return np.asarray(array)[None]

    def objects(self, item: Any) -> list[Any]:
        """See Swarm.objects."""
        return [item]

    def observe(self, observer: Observer) -> None:
        """See Swarm.observe."""

    @property
    def traffic(self) -> Traffic:
        """See Swarm.traffic."""
        return Traffic()


def total(swarm: Swarm, array: Array) -> Array:
    """The sum of the wafers' arrays, of their shape and dtype, the same bits on all of them."""
    parts = swarm.gather(array)
    result = np.array(parts[0])
    for part in parts[1:]:
        result += part
    return result
