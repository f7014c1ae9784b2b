"""Plans the activation memory: which bytes of one arena every value takes, and when.

Best fit by size, largest first: values whose lifetimes overlap never share bytes. It is a pure
function of lifetimes and sizes.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

# Offsets are multiples of this, so that every value starts on a cache line of two.
ALIGNMENT_BYTES = 128


@dataclass(frozen=True)
class Lifetime:
    """A value's size in bytes and the first and last time (inclusive) at which it is alive."""

    bytes: int
    start: int
    end: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Assigns offsets.

    Args:
        lifetimes: one entry a value.

    Returns:
        (offset in bytes of every value, bytes of the arena).
    """
    offsets = [0] * len(lifetimes)
    taken = _TakenBytes(max((life.end for life in lifetimes), default=0) + 1)
    total = 0
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].bytes, lifetimes[i].start))
    for i in order:
        life = lifetimes[i]
        size = -(-life.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        at = _best_gap(taken.during(life.start, life.end), size)
        offsets[i] = at
        taken.add(at, at + size, life.start, life.end)
        total = max(total, at + size)
    return offsets, total


def _best_gap(busy: list[tuple[int, int]], size: int) -> int:
    """Offset of the smallest gap that fits between sorted ranges of bytes."""
    best, best_room, position = -1, 0, 0
    for low, high in busy:
        room = low - position
        if room >= size and (best < 0 or room < best_room):
            best, best_room = position, room
        position = max(position, high)
    return position if best < 0 else best


class _TakenBytes:
    """Which bytes are taken at any time of a span: a segment tree over time.

    A span of times is made of a logarithmic number of tree nodes. Each node holds two unions of
    ranges of bytes: those taken throughout its times, and those taken at some of them. As values
    are packed closely, a union is a few ranges, however many values it was made of.
    """

    def __init__(self, times: int) -> None:
        self._leaves = times
        self._throughout: dict[int, list[int]] = {}
        self._sometimes: dict[int, list[int]] = {}

    def add(self, low: int, high: int, start: int, end: int) -> None:
        """Takes bytes from low up to high, at the times from start to end inclusive."""
        nodes = self._parts(start, end)
        for node in nodes:
            _unite(self._throughout.setdefault(node, []), low, high)
        for node in nodes | _above(nodes):
            _unite(self._sometimes.setdefault(node, []), low, high)

    def during(self, start: int, end: int) -> list[tuple[int, int]]:
        """Sorted ranges of bytes taken at any time from start to end inclusive; may overlap."""
        nodes = self._parts(start, end)
        unions = [self._sometimes.get(node, ()) for node in nodes]
        unions += [self._throughout.get(node, ()) for node in _above(nodes)]
        return sorted(pair for union in unions for pair in zip(union[::2], union[1::2]))

    def _parts(self, start: int, end: int) -> set[int]:
        """Fewest nodes that make up the times; node k has the children 2 k and 2 k + 1."""
        low, high = start + self._leaves, end + self._leaves + 1
        found = set()
        while low < high:
            if low & 1:
                found.add(low)
                low += 1
            if high & 1:
                high -= 1
                found.add(high)
            low, high = low >> 1, high >> 1
        return found


def _above(nodes: set[int]) -> set[int]:
    """All nodes that contain one of these, without themselves."""
    found = set()
    for node in nodes:
        node >>= 1
        while node and node not in found:
            found.add(node)
            node >>= 1
    return found


def _unite(union: list[int], low: int, high: int) -> None:
    """Adds a range to a union of ranges, held as their sorted ends: low, high, low, high, ..."""
    first, last = bisect.bisect_left(union, low), bisect.bisect_right(union, high)
    # An even position lies between two ranges, an odd one within a range, which goes on.
    union[first:last] = [low] * (first % 2 == 0) + [high] * (last % 2 == 0)
