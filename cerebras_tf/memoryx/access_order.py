"""In which order variables are needed, step after step, and what that says of each of them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence


class Itinerary:
    """The groups of variables that a step acquires, over and over, and where we are among them.

    Args:
        order: names of each group, in the order of the step.

    Attributes:
        order: as given.
        position: groups acquired so far, counted on from step to step.
    """

    def __init__(self, order: Sequence[Sequence[str]]) -> None:
        self.order = order
        self.position = 0
        self._uses: dict[str, list[int]] = {}
        for number, names in enumerate(order):
            for name in names:
                self._uses.setdefault(name, []).append(number)

    def advance(self, names: Sequence[str]) -> bool:
        """Goes on where the next group is just this; says whether it was."""
        if not self.order or list(names) != list(self.group(self.position)):
            return False
        self.position += 1
        return True

    def group(self, position: int) -> Sequence[str]:
        """Names of a group."""
        return self.order[position % len(self.order)]

    def next_use(self, name: str) -> float:
        """Position of the next group that holds a variable; infinite where none does."""
        uses = self._uses.get(name)
        if not uses:
            return float("inf")
        round_start = self.position - self.position % len(self.order)
        at = bisect.bisect_left(uses, self.position - round_start)
        if at < len(uses):
            return round_start + uses[at]
        return round_start + len(self.order) + uses[0]
