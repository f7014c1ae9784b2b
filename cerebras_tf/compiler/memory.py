"""Plans the activation memory: the offset of every value in one arena.

Best fit by size, largest first; values whose lifetimes overlap do not share bytes.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

# Offsets are multiples of this, two cache lines.
ALIGNMENT_BYTES = 128


@dataclass(frozen=True)
class Lifetime:
    """A value's size in bytes and the first and last time (inclusive) at which it is alive."""

    bytes: int
    start: int
    end: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Returns (offset in bytes of every value, bytes of the arena)."""
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
    best, least, position = -1, 0, 0
    for low, high in busy:
        gap = low - position
        if gap >= size and (best < 0 or gap < least):
            best, least = position, gap
        position = max(position, high)
    return position if best < 0 else best


class _TakenBytes:
    """Which bytes are taken at any time of a span: a segment tree over time.

    A span is a logarithmic number of tree nodes. Each node holds two unions of byte ranges: those
    taken throughout its times, and those taken at some of them. A union is a few ranges, as values
    are packed closely.
    """

    def __init__(self, times: int) -> None:
        self._leaves = times
        self._throughout: dict[int, list[int]] = {}
        self._sometimes: dict[int, list[int]] = {}

    def add(self, low: int, high: int, start: int, end: int) -> None:
        """Takes bytes from low up to high, at the times from start to end inclusive."""
        nodes = self._cover(start, end)
        for node in nodes:
            _unite(self._throughout.setdefault(node, []), low, high)
        for node in nodes | _ancestors(nodes):
            _unite(self._sometimes.setdefault(node, []), low, high)

    def during(self, start: int, end: int) -> list[tuple[int, int]]:
        """Sorted ranges of bytes taken at any time from start to end inclusive; may overlap."""
        nodes = self._cover(start, end)
        unions = [self._sometimes.get(node, ()) for node in nodes]
        unions += [self._throughout.get(node, ()) for node in _ancestors(nodes)]
        return sorted(pair for union in unions for pair in zip(union[::2], union[1::2]))

    def _cover(self, start: int, end: int) -> set[int]:
        """The fewest nodes that cover the times; node k has the children 2 k and 2 k + 1."""
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


def _ancestors(nodes: set[int]) -> set[int]:
    found = set()
    for node in nodes:
        node >>= 1
        while node and node not in found:
            found.add(node)
            node >>= 1
    return found


def _unite(union: list[int], low: int, high: int) -> None:
    """Adds a range to a union, stored as sorted ends: low, high, low, high, ..."""
    first, last = bisect.bisect_left(union, low), bisect.bisect_right(union, high)
    # An even position is between two ranges, an odd one within a range.
    union[first:last] = [low] * (first % 2 == 0) + [high] * (last % 2 == 0)
