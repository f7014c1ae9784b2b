"""Chooses what the backward pass makes again or spills, so that activations fit in a budget.

Every layer keeps what its backward pass reads, makes the cheap part or the whole of it again, or
lets what it keeps rest on the store's disk between the passes. The least extra time wins: changes
are taken in the order of seconds a byte saved, as few as make the planned memory fit. Where each
layer for itself is still too much, neighbouring layers made again keep only what crosses into the
first of them.

Seconds follow from prices and measured speeds, and only decide what is chosen; numbers are the same
whatever is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.compiler.activations import (
    CHEAP,
    CHEAP_SPILL,
    KEEP,
    KINDS,
    SPILL,
    WHOLE,
    Activations,
    Choice,
    Spilling,
)
from cerebras_tf.compiler.assemble import planned_bytes
from cerebras_tf.ir import StepGraph, Value
from cerebras_tf.ir.program import Program
from cerebras_tf.ir.schedule import StreamIn
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.passes.recompute_activations import Segment, recompute_activations
from cerebras_tf.quantities import seconds

Memory = Callable[[Sequence[Choice]], int]


@dataclass(frozen=True)
class Fitting:
    """What was chosen for a step that did not fit.

    Attributes:
        choices: one a segment, in the order of layers; all layers are in one.
        needed_bytes: activations, gradients and scratch memory without it.
        planned_bytes: the same with it.
        budget_bytes: what there is.
        flops: operations of the step without it.
        least_bytes: where it does not fit and nothing could be spilled: what it would take at the
            least with spilling; else None.
    """

    choices: tuple[Choice, ...]
    needed_bytes: int
    planned_bytes: int
    budget_bytes: int
    flops: int
    least_bytes: Optional[int] = None

    @property
    def fits(self) -> bool:
        """Whether the budget holds it."""
        return self.planned_bytes <= self.budget_bytes

    @property
    def seconds(self) -> float:
        """Time that a step takes more, predicted."""
        return sum(choice.seconds for choice in self.choices)

    def __str__(self) -> str:
        """What was chosen, why and what it costs, in one line."""
        count = {kind: self._layers(kind) for kind in (KEEP, *KINDS)}
        layers, cheap = sum(count.values()), count[CHEAP] + count[CHEAP_SPILL]
        parts = []
        if count[WHOLE] or cheap:
            text = f"{count[WHOLE] or cheap} of {layers} layers are computed twice"
            longest = max(c.segment.last - c.segment.first + 1 for c in self.choices)
            if longest > 1:
                text += f", {longest} at a time"
            if cheap:
                text += f", {cheap} in their cheap part" if count[WHOLE] else " in their cheap part"
            parts.append(text)
        if self.spilled_bytes:
            resting = count[SPILL] + count[CHEAP_SPILL]
            parts.append(
                f"{resting} of {layers} layers spill {_gb(self.spilled_bytes)} to memoryx_dir"
            )
        more = sum(choice.flops for choice in self.choices) / max(self.flops, 1)
        return (
            f"activations: {_gb(self.needed_bytes)} do not fit in {_gb(self.budget_bytes)}: "
            f"{'; '.join(parts) or 'nothing can be saved'}, which takes "
            f"{_gb(self.planned_bytes)}; "
            f"+{more:.0%} operations a step, predicted +{seconds(self.seconds)}"
        )

    @property
    def spilled_bytes(self) -> int:
        """Bytes that a step writes to the store's disk, and reads again."""
        return sum(choice.spilled_bytes for choice in self.choices)

    def _layers(self, kind: str) -> int:
        found = (c.segment for c in self.choices if c.kind == kind)
        return sum(segment.last - segment.first + 1 for segment in found)


@dataclass(frozen=True)
class SpillRoom:
    """Where activations may rest between the passes.

    Attributes:
        most_bytes: main memory of the store.
        read_bytes_per_s: speed of its disk.
        write_bytes_per_s: speed of its disk.
        busy_s: seconds for which a step keeps the disk busy without them.
    """

    most_bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    busy_s: float


@dataclass(frozen=True)
class Budget:
    """Memory for activations, gradients and scratch memory.

    Attributes:
        bytes: how much there is.
        speeds: how fast the machine is; asked only where a step does not fit.
        report: told what was chosen where a step does not fit.
        spill_room: where activations of a program may rest; None where there is nothing.
    """

    bytes: int
    speeds: Callable[[], Speeds]
    report: Callable[[Fitting], None]
    spill_room: Callable[[Program], Optional[SpillRoom]] = lambda program: None


def fit_activations(
    step: StepGraph, layers: int, program: Program, budget: Budget, streaming: bool = True
) -> frozenset[Value]:
    """Changes a step so that its activations fit, or take the least memory that was found.

    Args:
        step: in the order of the schedule, fused; changed in place.
        layers: number of layers.
        program: assembled from the step as it is, too large for the budget.
        budget: how much there is; told what was chosen.
        streaming: whether weights come and go layer by layer.

    Returns:
        The activations to let rest in the store; the assembler must be told.
    """
    scratch, speeds = program.scratch_bytes, budget.speeds()
    room = budget.bytes - scratch

    def chosen(spilling: Optional[Spilling]) -> tuple[list[Choice], int]:
        """What is chosen where so much may be spilled, and the bytes that it takes."""
        memory = _Planned(step, program, spilling)
        activations = Activations(step, program, speeds, spilling)
        found = choose(activations, layers, memory, room)
        if memory(found) > room:
            found = min(found, join_layers(activations, layers, memory, room), key=memory)
        return found, memory(found)

    there = budget.spill_room(program) if streaming else None
    choices, taken = chosen(None if there is None else _spilling(there, program, room, speeds))
    least: Optional[int] = None
    if taken > room and there is None and streaming:
        _, least = chosen(Spilling(program.arena_bytes, 0.0))
        least += scratch
    recompute_activations(step.graph, segments_of(choices))
    needed = program.arena_bytes + scratch
    fitting = Fitting(tuple(choices), needed, taken + scratch, budget.bytes, program.flops, least)
    budget.report(fitting)
    return _spilled(segments_of(choices))


def _spilling(there: SpillRoom, program: Program, room: int, speeds: Speeds) -> Spilling:
    """What spilling costs: a copy, and the disk's time as far as computing does not hide it.

    The disk's time that computing leaves is shared by all that lacks memory.
    """
    slots = program.slots
    groups = [step.slots for step in program.steps if isinstance(step, StreamIn)]
    sizes = [sum(slots[slot].type.most_bytes for slot in group) for group in groups]
    weights = max((layer.weight_bytes for layer in program.layers), default=0)
    # A third: one group is used while one is read and one written. What a group takes anyway, an
    # update's above all, may be taken here too.
    most = max(there.most_bytes // 3, max(sizes, default=0)) - weights
    computing_s = sum(speeds.seconds(item.cost) for item in program.instructions())
    a_byte = 1 / there.read_bytes_per_s + 1 / there.write_bytes_per_s
    moving_s = max(program.arena_bytes - room, 1) * a_byte
    hidden = min(max(computing_s - there.busy_s, 0.0) / moving_s, 1.0)
    return Spilling(max(most, 0), 2 / speeds.bytes_per_s + a_byte * (1 - hidden))


class _Planned:
    """Bytes of activation memory planned with some choices; the same ones are planned once."""

    def __init__(
        self, step: StepGraph, program: Program, spilling: Optional[Spilling] = None
    ) -> None:
        self._step = step
        self._staging = bool(program.staged) or spilling is not None
        self._known: dict[tuple[Segment, ...], int] = {(): program.arena_bytes}

    def __call__(self, choices: Sequence[Choice]) -> int:
        segments = tuple(segments_of(choices))
        if segments not in self._known:
            self._known[segments] = memory_with(self._step, segments, self._staging)
        return self._known[segments]


def memory_with(step: StepGraph, segments: Sequence[Segment], staging: bool = False) -> int:
    """Bytes of the activation memory where these are made again; the step stays as it is.

    Args:
        step: as for fit_activations.
        segments: what is made again, or spilled.
        staging: whether gradients that wait rest in the store, and what is spilled.
    """
    graph = step.graph
    nodes, operands = list(graph.nodes), [node.inputs for node in graph.nodes]
    recompute_activations(graph, segments)
    found = planned_bytes(step, staging, _spilled(segments))
    graph.nodes = nodes
    for node, inputs in zip(nodes, operands):
        node.inputs = inputs
    return found


def _gb(bytes: int) -> str:
    return f"{bytes / 1e9:.3g} GB"


def _spilled(segments: Iterable[Segment]) -> frozenset[Value]:
    return frozenset(value for segment in segments for value in segment.spilled)


def segments_of(choices: Iterable[Choice]) -> list[Segment]:
    """What some choices make again or spill."""
    return [choice.segment for choice in choices if choice.kind != KEEP]


@dataclass(frozen=True)
class _Move:
    """A layer's way from one choice to a dearer one that saves more."""

    layer: int
    before: Choice
    after: Choice

    @property
    def saved_bytes(self) -> int:
        return self.after.saved_bytes - self.before.saved_bytes

    @property
    def seconds(self) -> float:
        return self.after.seconds - self.before.seconds

    @property
    def order(self) -> tuple[float, int]:
        """Seconds a byte, then the layer.

        A low layer's turn in the backward pass comes when the others have let go of theirs.
        """
        return (self.seconds / self.saved_bytes, self.layer)


def choose(activations: Activations, layers: int, memory: Memory, room: int) -> list[Choice]:
    """One choice a layer, of the least extra time that was found to fit; else of least memory.

    Args:
        activations: what layers may choose.
        layers: how many there are.
        memory: bytes of activation memory planned with some choices.
        room: bytes there are.
    """
    start = [activations.choice(KEEP, layer, layer) for layer in range(layers)]
    moves = sorted(
        (move for keep in start for move in _moves(activations, keep)), key=lambda m: m.order
    )

    def made(count: int) -> list[Choice]:
        found = list(start)
        for move in moves[:count]:
            found[move.layer] = move.after
        return found

    def fits(choices: Sequence[Choice]) -> bool:
        return memory(choices) <= room

    count = _fewest(
        lambda count: fits(made(count)), len(moves), _guess(moves, memory(start) - room)
    )
    choices = _smallest(made(len(moves)), moves, memory) if count is None else made(count)
    if not fits(choices):
        return choices
    return _exchanged(_without_idle(choices, moves, fits), moves, memory, room)


def _guess(moves: Sequence[_Move], excess_bytes: int) -> int:
    """How many moves should do, going by what they save."""
    for count, move in enumerate(moves, 1):
        excess_bytes -= move.saved_bytes
        if excess_bytes <= 0:
            return count
    return len(moves)


def _fewest(fits: Callable[[int], bool], most: int, guess: int) -> Optional[int]:
    """The least number from 1 to most that fits, near a guess; None where none does.

    More is taken to fit where fewer do.
    """
    low, high, count, stride = 0, most + 1, guess, 1
    while high - low > 1:
        if fits(count):
            high = count
            count = max(count - stride, low + 1) if not low else (low + high) // 2
        else:
            low = count
            count = min(count + stride, most) if high > most else (low + high) // 2
        stride *= 2
    return high if high <= most else None


def _moves(activations: Activations, keep: Choice) -> list[_Move]:
    """Ways of a layer from what it keeps, each dearer a byte than the one before."""
    layer = keep.segment.first
    moves: list[_Move] = []
    found = [activations.choice(kind, layer, layer) for kind in KINDS]
    for choice in sorted(found, key=lambda c: (c.saved_bytes, c.seconds)):
        before = moves[-1].after if moves else keep
        if choice.saved_bytes <= before.saved_bytes:
            continue
        move = _Move(layer, before, choice)
        while moves and move.order < moves[-1].order:  # what saves less is the worse bargain
            move = _Move(layer, moves.pop().before, choice)
        moves.append(move)
    return moves


def _smallest(choices: list[Choice], moves: Sequence[_Move], memory: Memory) -> list[Choice]:
    """Takes back moves that cost memory, as of a layer whose turn comes when memory is fullest."""
    least = memory(choices)
    for move in sorted(moves, key=lambda m: (-m.layer, -m.seconds)):
        if choices[move.layer] is move.after:
            trial = list(choices)
            trial[move.layer] = move.before
            found = memory(trial)
            if found > least:  # what holds of layers above holds of those below
                break
            choices, least = trial, found
    return choices


def _without_idle(
    choices: list[Choice], moves: Sequence[_Move], fits: Callable[[Sequence[Choice]], bool]
) -> list[Choice]:
    """Takes back moves that fitting does not need, the dearest first, of equal ones the highest.

    Of equal moves, one that is needed speaks for those of lower layers.
    """
    needed: set[tuple[int, float]] = set()
    for move in sorted(moves, key=lambda m: (-m.seconds, -m.layer)):
        kind = (move.saved_bytes, move.seconds)
        if kind in needed or choices[move.layer] is not move.after:
            continue
        trial = list(choices)
        trial[move.layer] = move.before
        if fits(trial):
            choices = trial
        else:
            needed.add(kind)
    return choices


def _exchanged(
    choices: list[Choice], moves: Sequence[_Move], memory: Memory, room: int
) -> list[Choice]:
    """Takes a dearer move back for a cheaper one that saves enough: layers differ in size."""
    tried: set[tuple[int, float]] = set()
    for taken in sorted(moves, key=lambda m: (-m.seconds, -m.layer)):
        kind = (taken.saved_bytes, taken.seconds)
        if choices[taken.layer] is not taken.after or kind in tried:
            continue
        tried.add(kind)
        without = list(choices)
        without[taken.layer] = taken.before
        excess = memory(without) - room
        for move in _cheaper(taken, without, moves, excess):
            trial = list(without)
            trial[move.layer] = move.after
            if memory(trial) <= room:
                choices = trial
                break
    return choices


def _cheaper(
    taken: _Move, choices: list[Choice], moves: Sequence[_Move], excess: int
) -> list[_Move]:
    """Moves from some choices that save enough in less time than one did, the cheapest first.

    Of equal ones only that of the lowest layer.
    """
    found: dict[tuple[float, int], _Move] = {}
    for move in moves:
        more = _Move(move.layer, choices[move.layer], move.after)
        enough = move.layer != taken.layer and more.saved_bytes >= excess > 0
        if enough and more.seconds < taken.seconds:
            found.setdefault((more.seconds, more.saved_bytes), more)
    return [found[key] for key in sorted(found)]


def join_layers(activations: Activations, layers: int, memory: Memory, room: int) -> list[Choice]:
    """Segments of more and more layers made again whole: the first that fit, or the smallest.

    Args:
        activations: what layers may choose.
        layers: how many there are.
        memory: bytes of activation memory planned with some choices.
        room: bytes there are.
    """
    best: list[Choice] = []
    least: Optional[int] = None
    size = 2
    while size < 2 * layers:
        choices = [
            activations.choice(WHOLE, first, min(first + size, layers) - 1)
            for first in range(0, layers, size)
        ]
        needed = memory(choices)
        if least is not None and needed >= least:  # what a segment holds outweighs what it saves
            break
        best, least = choices, needed
        if needed <= room:
            break
        size += max(1, size // 2)
    return best
