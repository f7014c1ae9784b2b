"""The state of a model's random ops, from which a run resumes.

The front end gives every random op a key and a stream of the Philox generator. An op whose
invocations have one size reads the number of its draws. An op whose invocations differ in size
reads its key, its stream and the count of numbers that it has drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np

from cerebras_tf.ir import Array, substitute
from cerebras_tf.ir.program import COMMON_RANDOM_STEP, RANDOM_STEP, Program

# Names in checkpoints: how often random ops have drawn, int64 [], where that is not the global
# step; and below it how many numbers each has made whose invocations differ in size.
RANDOM_STEP_KEY = "cerebras_tf/random_step"
_MADE_KEY = f"{RANDOM_STEP_KEY}/"


class RandomStreams:
    """The streams of one wafer.

    Args:
        rank: of the wafer.
        wafers: number of wafers, each of which draws different numbers.
        trains: whether ops draw new numbers with every update; else with every step.
    """

    def __init__(self, rank: int, wafers: int, trains: bool) -> None:
        self._rank, self._wafers, self._trains = rank, wafers, trains
        self._draws: Optional[int] = None  # at the start it follows from the global step
        self._made: dict[str, int] = {}

    def features(self, program: Program, global_step: int) -> dict[str, Array]:
        """What random ops read at the next step, by name of the feature."""
        if self._draws is None:
            self._draws = global_step // self._wafers if self._trains else 0
        # As if one wafer ran the batches of all wafers sequentially.
        own = self._draws * self._wafers + self._rank
        seeds = {
            name: [draw.key, draw.stream + self._rank, self._made.get(name, 0)]
            for name, draw in program.draws.items()
        }
        given = {RANDOM_STEP: own, COMMON_RANDOM_STEP: self._draws, **seeds}
        return {name: np.array(numbers, np.int64) for name, numbers in given.items()}

    def advance(self, program: Program, sizes: Mapping[str, int], updates: bool) -> None:
        """Counts a step that a program has made."""
        if updates or not self._trains:
            self._draws = (self._draws or 0) + 1
            for name, draw in program.draws.items():
                self._made[name] = self._made.get(name, 0) + substitute(draw.size, sizes)

    def state(self, global_step: int) -> dict[str, int]:
        """What a checkpoint must hold besides the global step.

        The number of draws does not follow from the global step if a step takes several runs, as in
        gradient accumulation; nor does the count of numbers if batches differ in size.
        """
        found = {_MADE_KEY + name: number for name, number in self._made.items()}
        if self._draws is not None and self._draws * self._wafers != global_step:
            found[RANDOM_STEP_KEY] = self._draws * self._wafers
        return found

    def restore(self, state: Mapping[str, int]) -> None:
        """Restores what `state` returned for a checkpoint."""
        draws = state.get(RANDOM_STEP_KEY)
        self._draws = None if draws is None else draws // self._wafers
        self._made = {
            name[len(_MADE_KEY) :]: number
            for name, number in state.items()
            if name.startswith(_MADE_KEY)
        }
