"""What the backward pass of each layer keeps, makes again or spills, what that saves and costs.

The cheap part of a layer is what moves memory rather than computes, such as outputs of activation
functions and norms; the whole is everything, from what crosses from earlier layers. Which are
chosen is the affair of compiler/fit_activations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from cerebras_tf.compiler.assemble import planned_bytes
from cerebras_tf.compiler.spilling import can_spill
from cerebras_tf.ir import Node, StepGraph, Value
from cerebras_tf.ir.program import Cost, Program
from cerebras_tf.ir.schedule import StreamIn
from cerebras_tf.ir.step import GRADIENT
from cerebras_tf.ops import lookup, viewed
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.passes.recompute_activations import (
    Segment,
    recompute_activations,
    recompute_recipe,
)
from cerebras_tf.quantities import seconds

KEEP, CHEAP, WHOLE = "keep", "cheap", "whole"
# What is kept rests in the store between the passes; the cheap part may be made again from it.
SPILL, CHEAP_SPILL = "spill", "cheap and spill"
KINDS = (CHEAP, WHOLE, SPILL, CHEAP_SPILL)
# Operations for every byte that a cheap node reads or writes. Elementwise work and norms have 1 to
# 3, products with K columns have K / 2.
CHEAP_FLOPS_A_BYTE = 4


@dataclass(frozen=True)
class Choice:
    """What one segment of layers does with what its backward pass reads.

    Attributes:
        kind: KEEP or one of KINDS.
        segment: the layers, and what they make again.
        saved_bytes: how much less memory they hold between forward and backward pass.
        flops: operations that a step makes more.
        seconds: time that a step takes more, predicted.
        spilled_bytes: bytes that are written to the store's disk, and read again.
    """

    kind: str
    segment: Segment
    saved_bytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    spilled_bytes: int = 0


@dataclass(frozen=True)
class Spilling:
    """What it takes to let activations rest in the store.

    Attributes:
        most_bytes: of one layer: the store must hold them when the layer's turn comes again.
        seconds_a_byte: time that a step takes more.
    """

    most_bytes: int
    seconds_a_byte: float


class Activations:
    """What the layers of a step keep, what they may do instead, what that saves and costs."""

    def __init__(
        self, step: StepGraph, program: Program, speeds: Speeds, spilling: Optional[Spilling] = None
    ) -> None:
        """Reads the step.

        Args:
            step: in the order of the schedule, fused.
            program: assembled from it: gives the prices.
            speeds: how fast the machine is.
            spilling: what spilling costs; None where nothing can be spilled.
        """
        self._speeds = speeds
        self._spilling = spilling
        self._operands_of: dict[Value, list[Value]] = {}
        run = [node for node in step.graph.nodes if node.op not in ("constant", GRADIENT)]
        self._costs = {node: item.cost for node, item in zip(run, program.instructions())}
        self._position = {node: i for i, node in enumerate(run)}
        # Layers whose backward pass reads a value; none of values that others read behind it.
        self._readers: dict[Value, set[int]] = {}
        self._held: set[Value] = {viewed(value) for value in step.graph.outputs}
        for node in run:
            if lookup(node.op).collective:  # all wafers would have to choose the same
                self._held.update(node.outputs)
            if node.direction != "forward":
                for value in map(viewed, node.inputs):
                    if node.direction == "backward":
                        self._readers.setdefault(value, set()).add(node.layer)
                    else:
                        self._held.add(value)
        self._made_in: dict[int, list[Value]] = {}
        for value in self._readers:
            made = value.node
            if made is not None and made.op != "constant" and made.direction == "forward":
                self._made_in.setdefault(made.layer, []).append(value)

    def choice(self, kind: str, first: int, last: int) -> Choice:
        """The choice of a kind for the layers from first to last; KEEP where nothing is saved."""
        nothing = Choice(KEEP, Segment(first, last, frozenset()))
        if kind == KEEP:
            return nothing
        if kind == SPILL:
            return self._spilling_too(nothing, kind, self._wanted(first, last))
        if kind == CHEAP_SPILL:
            kept, _ = self._kept(CHEAP, first, last)
            return self._spilling_too(self.choice(CHEAP, first, last), kind, kept)
        kept, added = self._kept(kind, first, last)
        wanted = self._wanted(first, last)
        again = self._again([v for v in wanted if v not in kept], kept, first, last)
        if not again:
            return nothing
        costs = [self._costs[node] for node in {v.node for v in again if v.node is not None}]
        return Choice(
            kind,
            Segment(first, last, frozenset(again)),
            sum(_bytes(v) for v in wanted if v not in kept) - added,
            sum(cost.flops for cost in costs),
            sum(self._speeds.seconds(cost) for cost in costs),
        )

    def _spilling_too(self, choice: Choice, kind: str, kept: Iterable[Value]) -> Choice:
        """The choice with as much spilled of what it keeps as may be, the largest values first."""
        if self._spilling is None:
            return choice
        left, spilled = self._spilling.most_bytes, []
        for value in sorted(kept, key=lambda v: (-_bytes(v), self._position_of(v), v.index)):
            if can_spill(value) and _bytes(value) <= left:
                left -= _bytes(value)
                spilled.append(value)
        if not spilled:
            return choice
        size = sum(map(_bytes, spilled))
        return replace(
            choice,
            kind=kind,
            segment=replace(choice.segment, spilled=frozenset(spilled)),
            saved_bytes=choice.saved_bytes + size,
            seconds=choice.seconds + size * self._spilling.seconds_a_byte,
            spilled_bytes=size,
        )

    def _wanted(self, first: int, last: int) -> list[Value]:
        """Values of the layers that are kept for their own backward passes only, last first."""
        found = [
            value
            for layer in range(first, last + 1)
            for value in self._made_in.get(layer, ())
            if self._is_own(value, first, last)
        ]
        return sorted(found, key=lambda v: (self._position_of(v), v.index), reverse=True)

    def _is_own(self, value: Value, first: int, last: int) -> bool:
        readers = self._readers.get(value, ())
        return value not in self._held and all(first <= layer <= last for layer in readers)

    def _position_of(self, value: Value) -> int:
        assert value.node is not None
        return self._position[value.node]

    def _kept(self, kind: str, first: int, last: int) -> tuple[set[Value], int]:
        """Values that are kept, and bytes among them that would not be alive otherwise."""
        wanted = self._wanted(first, last)
        kept, added = set(wanted), 0
        for value in wanted:
            if not self._may_remake(kind, value.node):
                continue
            found = self._needed_for(kind, value, kept - {value}, first, last)
            more = sum(map(_bytes, found))
            if more < _bytes(value):
                kept.discard(value)
                kept.update(found)
                added += more
        return kept, added

    def _needed_for(
        self, kind: str, value: Value, kept: set[Value], first: int, last: int
    ) -> set[Value]:
        """What must be kept besides so that a value can be made again."""
        needed: set[Value] = set()
        seen, stack = {value}, [value]
        while stack:
            for operand in self._operands(stack.pop()):
                if operand in seen or operand in kept or self._is_alive(operand, first, last):
                    continue
                seen.add(operand)
                assert operand.node is not None
                inside = first <= operand.node.layer <= last
                if inside and self._may_remake(kind, operand.node):
                    stack.append(operand)
                else:
                    needed.add(operand)
        return needed

    def _again(
        self, values: Sequence[Value], kept: set[Value], first: int, last: int
    ) -> set[Value]:
        """Values that are made again where these are."""
        again, stack = set(values), list(values)
        while stack:
            for operand in self._operands(stack.pop()):
                if operand in again or operand in kept or self._is_alive(operand, first, last):
                    continue
                assert operand.node is not None
                if first <= operand.node.layer <= last:
                    again.add(operand)
                    stack.append(operand)
        return again

    def _is_alive(self, value: Value, first: int, last: int) -> bool:
        """Whether a value is in memory in the backward pass of the layers anyway."""
        made = value.node
        if made is None or made.op == "constant" or made.direction != "forward":
            return True
        if value in self._held:
            return True
        if first <= made.layer <= last:
            return value in self._readers and not self._is_own(value, first, last)
        return value in self._readers

    def _may_remake(self, kind: str, node: Optional[Node]) -> bool:
        """Whether a node may be run again."""
        if node is None:
            return False
        cost: Cost = self._costs[node]
        moved = cost.bytes_read + cost.bytes_written
        return kind == WHOLE or cost.flops <= CHEAP_FLOPS_A_BYTE * moved

    def _operands(self, value: Value) -> list[Value]:
        """What a value is made of, views looked through."""
        if value not in self._operands_of:
            assert value.node is not None
            operands = recompute_recipe(value.node, [value]).inputs
            self._operands_of[value] = [viewed(operand) for operand in operands]
        return self._operands_of[value]


def _bytes(value: Value) -> int:
    return value.type.most_bytes if value.type.is_bounded else 0


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
class SpillSpace:
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
        spill_space: where activations of a program may rest; None where there is nothing.
    """

    bytes: int
    speeds: Callable[[], Speeds]
    report: Callable[[Fitting], None]
    spill_space: Callable[[Program], Optional[SpillSpace]] = lambda program: None


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

    there = budget.spill_space(program) if streaming else None
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


def _spilling(there: SpillSpace, program: Program, room: int, speeds: Speeds) -> Spilling:
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
