"""Predicts a step on N wafers: its program for N, run times measured on one, a model of the links.

Every wafer has a clock, one lane for copies of weights and one for means of gradients. A lane
runs collectives sequentially. Computation waits where the program does: for weights, means and
sums. All wafers are simulated, because owners differ in work.

Between wafers, copies and means for one wafer go along a chain in chunks, as in swarmx/mpi.py:
wafer p of the chain gets the last byte p chunks later. In a tree, as in SwarmX, each node serves
`ways` wafers, so that the depth grows with the logarithm of N.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from cerebras_tf.ir.program import Instruction, Program
from cerebras_tf.ir.schedule import Run
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.collective_plan import (
    COPY,
    EVERYWHERE,
    GATHER,
    MEAN,
    Collective,
    Wait,
    Work,
    events,
    sent_bytes,
)
from cerebras_tf.swarmx.mpi import CHUNK_BYTES

# Only their ratio matters: they divide the measured time of a layer among its runs.
_NOMINAL = Speeds(flops_per_s=1e11, bytes_per_s=1e10)
LayerTimes = Mapping[tuple[int, str], float]


@dataclass(frozen=True)
class Link:
    """The connection of a wafer to others.

    Attributes:
        bytes_per_s: speed in one direction; both directions are used at once.
        latency_s: from one wafer, or node, to the next.
        ways: wafers that a node of the tree serves, at least 2; 0 for messages from wafer to wafer.
        mean_bytes_per_s: speed of means, which cores add up; None for bytes_per_s.
        core_s_per_byte: time that a byte of a copy takes of the wafer's cores.
        mean_core_s_per_byte: the same for a mean.
    """

    bytes_per_s: float
    latency_s: float
    ways: int = 0
    mean_bytes_per_s: Optional[float] = None
    core_s_per_byte: float = 0.0
    mean_core_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        if self.ways < 0 or self.ways == 1:
            raise ValueError(
                f"ways: a node of a tree must serve at least 2 wafers. Received: {self.ways}. "
                "Give 0 for messages from wafer to wafer."
            )

    def for_means(self) -> Link:
        """The link with the speed of means."""
        speed = self.mean_bytes_per_s or self.bytes_per_s
        return replace(self, bytes_per_s=speed, core_s_per_byte=self.mean_core_s_per_byte)

    def hop_s(self, size: int) -> float:
        """Seconds until the first chunk of some bytes reaches the next wafer or node."""
        return self.latency_s + min(size, CHUNK_BYTES) / self.bytes_per_s

    def through_tree_s(self, wafers: int, size: int) -> float:
        """Seconds until the first chunk has passed through the tree, up or down."""
        levels, served = 1, self.ways
        while served < wafers:
            levels, served = levels + 1, served * self.ways
        return levels * self.hop_s(size)


@dataclass(frozen=True)
class ScaledStep:
    """A step on some wafers.

    Attributes:
        wafers: how many.
        step_s: seconds of the step.
        collective_s: seconds in which collectives run, mean over wafers.
        waited_s: seconds of these in which computation waits, mean over wafers.
        sent_bytes: bytes sent, by wafer; to the tree where there is one.
    """

    wafers: int
    step_s: float
    collective_s: float
    waited_s: float
    sent_bytes: Sequence[int]

    @property
    def hidden_share(self) -> float:
        """Share of the collectives' time that computation hides; 1 without collectives."""
        return 1 - min(self.waited_s / self.collective_s, 1.0) if self.collective_s else 1.0


def scaled_step(program: Program, times: LayerTimes, other_s: float, link: Link) -> ScaledStep:
    """Simulates a step.

    Args:
        program: compiled for the number of wafers to predict.
        times: seconds measured on one wafer, by layer and direction.
        other_s: seconds of a step outside of layers: input, summaries, the loop.
        link: between wafers.
    """
    simulation = _Simulation(program, times, link)
    wafers = program.wafers
    return ScaledStep(
        wafers,
        max(simulation.clock) + other_s,
        sum(simulation.busy) / wafers,
        sum(simulation.waited) / wafers,
        sent_bytes(program, through_tree=link.ways > 0),
    )


class _Simulation:
    def __init__(self, program: Program, times: LayerTimes, link: Link) -> None:
        self._links = {COPY: link, GATHER: link, MEAN: link.for_means()}
        self.wafers = range(program.wafers)
        self.clock = [0.0 for _ in self.wafers]
        self.busy = [0.0 for _ in self.wafers]
        self.waited = [0.0 for _ in self.wafers]
        # When a lane is free.
        self._lanes = {kind: [0.0 for _ in self.wafers] for kind in (COPY, MEAN)}
        self._arrivals: dict[int, list[float]] = {}
        seconds = _run_seconds(program, times)
        for item in events(program):
            if isinstance(item, Work):
                for wafer in self.wafers if item.wafer == EVERYWHERE else [item.wafer]:
                    self.clock[wafer] += seconds[item.number]
            elif isinstance(item, Wait):
                self._await(item.slot)
            else:
                self._start(item)

    def _start(self, item: Collective) -> None:
        """A collective starts on its lane after those before it have ended."""
        link, others = self._links[item.kind], len(self.wafers) - 1
        if not others:
            return
        if item.kind == GATHER:
            moving = others * item.bytes / link.bytes_per_s
            if link.ways:  # up and down
                latency_s = 2 * link.through_tree_s(len(self.wafers), item.bytes)
            else:
                latency_s = others * link.latency_s
            self.clock = [max(self.clock) + moving + latency_s for _ in self.wafers]
            return
        lane = self._lanes[item.kind]
        starts = [max(free, now) for free, now in zip(lane, self.clock)]
        lane[:] = self._ends(starts, item)
        self._arrivals[item.slot] = list(lane)
        for wafer in self.wafers:
            self.busy[wafer] += lane[wafer] - starts[wafer]
            self.clock[wafer] += item.bytes * link.core_s_per_byte

    def _ends(self, starts: list[float], item: Collective) -> list[float]:
        """When a collective ends on each wafer, given when each wafer could start it."""
        to_all = item.kind == MEAN and item.wafer == EVERYWHERE
        link = self._links[item.kind]
        if link.ways:
            return _tree(link, starts, item.bytes, 2 if to_all else 1)
        if to_all:
            return _reduced_and_gathered(link, starts, item.bytes)
        order = [(item.wafer + place) % len(starts) for place in self.wafers]
        return _chain(link, starts, item.bytes, order if item.kind == COPY else order[::-1])

    def _await(self, slot: int) -> None:
        arrival = self._arrivals.pop(slot, None)
        if arrival is not None:
            self._wait(arrival)

    def _wait(self, until: Sequence[float]) -> None:
        for wafer in self.wafers:
            late = max(until[wafer] - self.clock[wafer], 0.0)
            self.waited[wafer] += late
            self.clock[wafer] += late


def _chain(link: Link, starts: list[float], size: int, order: Sequence[int]) -> list[float]:
    """A chain of wafers; each forwards chunks as they arrive."""
    hop = link.hop_s(size)
    done = list(starts)
    done[order[0]] = starts[order[0]] + size / link.bytes_per_s
    for before, wafer in zip(order, order[1:]):
        own = starts[wafer] + size / link.bytes_per_s
        done[wafer] = max(done[before] + hop, own)
    return done


def _tree(link: Link, starts: list[float], size: int, passes: int) -> list[float]:
    """Up or down a tree, or both; nodes forward chunks as they arrive."""
    through = passes * link.through_tree_s(len(starts), size)
    return [max(starts) + size / link.bytes_per_s + through for _ in starts]


def _reduced_and_gathered(link: Link, starts: list[float], size: int) -> list[float]:
    """Reduce-scatter, then all-gather."""
    wafers = len(starts)
    blocks = math.ceil(size / (wafers * CHUNK_BYTES))
    moving = 2 * (wafers - 1) / wafers * size / link.bytes_per_s
    return [max(starts) + moving + 2 * blocks * link.latency_s for _ in starts]


def _run_seconds(program: Program, times: LayerTimes) -> dict[int, float]:
    """Seconds of every run, by its index in the schedule.

    The measured time of a layer and direction is divided among its runs by their cost.
    """
    cost: dict[int, float] = {}
    whole: dict[tuple[int, str], float] = defaultdict(float)
    for number, entry in enumerate(program.schedule):
        if isinstance(entry, Run):
            cost[number] = sum(map(_nominal_s, program.bodies[entry.body]))
            whole[entry.layer, entry.direction] += cost[number]
    found = {}
    for number, seconds in cost.items():
        entry = program.schedule[number]
        assert isinstance(entry, Run)
        key = entry.layer, entry.direction
        found[number] = times.get(key, 0.0) * seconds / (whole[key] or 1.0)
    return found


def _nominal_s(item: Instruction) -> float:
    return _NOMINAL.seconds(item.cost)
