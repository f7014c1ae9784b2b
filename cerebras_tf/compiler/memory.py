"""Plans the activation memory: which bytes of one arena every value takes, and when.

Best fit by size, largest first: values whose lifetimes overlap never share bytes. It is a pure
function of lifetimes and sizes; it deliberately knows no ops and no layers.
"""

from __future__ import annotations

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
    placed: list[tuple[int, int, int, int]] = []  # offset, end of bytes, start, end of life
    total = 0
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].bytes, lifetimes[i].start))
    for i in order:
        life = lifetimes[i]
        size = -(-life.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        at = _best_gap(placed, life, size)
        offsets[i] = at
        placed.append((at, at + size, life.start, life.end))
        total = max(total, at + size)
    return offsets, total


def _best_gap(placed: list[tuple[int, int, int, int]], life: Lifetime, size: int) -> int:
    """Offset of the smallest gap that fits among the values alive at the same time."""
    busy = sorted(
        (low, high) for low, high, start, end in placed if start <= life.end and life.start <= end
    )
    best, best_room, position = -1, 0, 0
    for low, high in busy:
        room = low - position
        if room >= size and (best < 0 or room < best_room):
            best, best_room = position, room
        position = max(position, high)
    return position if best < 0 else best
