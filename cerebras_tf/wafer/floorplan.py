"""Rectangles of cores for the layers of pipelined mode, sized so that the slowest is as fast as
possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cerebras_tf.errors import CapacityError


@dataclass(frozen=True)
class Rectangle:
    """A region of cores, for one layer of one replica.

    Attributes:
        x, y: first column and row.
        width, height: columns and rows.
        utilisation: share of its cores' peak that the layer uses.
    """

    name: str
    x: int
    y: int
    width: int
    height: int
    replica: int = 0
    utilisation: float = 0.0

    @property
    def cores(self) -> int:
        return self.width * self.height


@dataclass(frozen=True)
class StageTime:
    """Cycles of a stage on c cores: parallel / c + overhead / sqrt(c).

    Attributes:
        parallel: cycles that all cores share.
        overhead: cycles that only one axis of cores shares.
    """

    parallel: float
    overhead: float
    least: float = 1.0

    def cores_for(self, cycles: float) -> float:
        """Cores with which it takes at most so many cycles."""
        root = self.overhead + math.sqrt(self.overhead**2 + 4 * self.parallel * cycles)
        return max(self.least, (root / (2 * cycles)) ** 2)


def balanced_cores(stages: Sequence[StageTime], cores: int) -> list[float]:
    """Cores of every stage, so that all take equally long, except those that memory enlarges."""
    low, high = 0.0, max(stage.parallel + stage.overhead for stage in stages)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(stage.cores_for(middle) for stage in stages) <= cores:
            high = middle
        else:
            low = middle
    found = [stage.cores_for(high) for stage in stages]
    spare = cores / sum(found)
    return [share * spare for share in found]


def lay_out(
    names: Sequence[str], cores: Sequence[float], x: int, y: int, width: int, height: int
) -> list[Rectangle]:
    """Rectangles of the given sizes, in order, that cover a region: strips that go up and down.

    Args:
        cores: size of every stage, scaled to the region.
        x, y, width, height: the region.

    Raises:
        CapacityError: there are more stages than cores.
    """
    if len(names) > width * height:
        raise CapacityError(
            f"floor plan: every layer needs a core. Received: {len(names)} layers, "
            f"{width * height} cores. Use weight_streaming."
        )
    # A number of strips that makes rectangles about square, with at least one row per stage.
    count = max(1, min(width, round(math.sqrt(len(names) * width / height))))
    while count < width and math.ceil(len(names) / count) > height:
        count += 1
    found: list[Rectangle] = []
    left, stages = x, list(zip(names, cores))
    for strip in range(count):
        strips = count - strip
        rest = sum(size for _, size in stages)
        members = stages
        if strips > 1:
            members = _next_strip(stages, rest / strips, len(stages) - strips + 1, height)
        stages = stages[len(members) :]
        free = x + width - left
        share = sum(size for _, size in members) / rest
        thick = free if strips == 1 else max(1, min(free - strips + 1, round(free * share)))
        found += _strip(members, left, y, thick, height, strip % 2 == 1)
        left += thick
    return found


def _next_strip(
    stages: list[tuple[str, float]], target: float, most: int, height: int
) -> list[tuple[str, float]]:
    """The first stages that together come nearest to a strip's share."""
    members: list[tuple[str, float]] = []
    filled = 0.0
    for stage in stages[: max(1, min(most, height))]:
        if members and filled + stage[1] / 2 > target:
            break
        members.append(stage)
        filled += stage[1]
    return members


def _strip(
    members: Sequence[tuple[str, float]], x: int, y: int, width: int, height: int, upwards: bool
) -> list[Rectangle]:
    """Consecutive rectangles of a strip."""
    found, used, total = [], 0.0, sum(size for _, size in members)
    top = y
    for i, (name, size) in enumerate(members):
        used += size
        last = y + height - (len(members) - i - 1)
        bottom = min(last, max(top + 1, y + round(height * used / total)))
        found.append(Rectangle(name, x, top, width, bottom - top))
        top = bottom
    if upwards:
        found = [
            Rectangle(r.name, r.x, 2 * y + height - r.y - r.height, r.width, r.height)
            for r in found
        ]
    return found
