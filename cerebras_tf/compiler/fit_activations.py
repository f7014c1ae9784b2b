"""Chooses what the backward pass recomputes or spills, so that activations fit in a budget.

Every layer keeps what its backward pass reads, recomputes the memory-bound part of it (outputs of
activation functions and norms) or all of it, or spills what it keeps. The least extra time wins:
changes are made in the order of seconds per byte saved, as few as make the planned memory fit. If
single layers still need too much, consecutive layers are recomputed together and keep only the
inputs of the first. Seconds are predicted from prices and measured speeds; the choice does not
change any number.
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
# Kept values are spilled between the passes; the cheap part may be recomputed from them.
SPILL, CHEAP_SPILL = "spill", "cheap and spill"
KINDS = (CHEAP, WHOLE, SPILL, CHEAP_SPILL)
# The most operations for every byte that a cheap node reads or writes. Elementwise work and norms
# have 1 to 3, products with K columns have K / 2.
CHEAP_FLOPS_A_BYTE = 4


@dataclass(frozen=True)
class Choice:
    """How a segment of layers provides the values that its backward pass reads.

    Attributes:
        kind: KEEP or one of KINDS.
        segment: the layers, and what they recompute or spill.
        saved_bytes: memory that it saves between forward and backward pass.
        flops: additional operations of a step.
        seconds: additional time of a step, predicted.
        spilled_bytes: bytes that are written to disk and read again.
    """

    kind: str
    segment: Segment
    saved_bytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    spilled_bytes: int = 0


@dataclass(frozen=True)
class Spilling:
    """The cost of spilling.

    Attributes:
        max_bytes: the most that a layer may spill, as the store must hold it.
        seconds_per_byte: additional time of a step.
    """

    max_bytes: int
    seconds_per_byte: float


class Activations:
    """Computes the choices of layers: what they save and cost."""

    def __init__(
        self, step: StepGraph, program: Program, speeds: Speeds, spilling: Optional[Spilling] = None
    ) -> None:
        self._speeds = speeds
        self._spilling = spilling
        self._operands_of: dict[Value, list[Value]] = {}
        run = [node for node in step.graph.nodes if node.op not in ("constant", GRADIENT)]
        self._costs = {node: item.cost for node, item in zip(run, program.instructions())}
        self._position = {node: i for i, node in enumerate(run)}
        # Layers whose backward pass reads a value.
        self._readers: dict[Value, set[int]] = {}
        self._held: set[Value] = {viewed(value) for value in step.graph.outputs}
        for node in run:
            if lookup(node.op).collective:  # all wafers would have to choose equally
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
        """The choice of a kind for the layers from first to last; KEEP if nothing is saved."""
        nothing = Choice(KEEP, Segment(first, last, frozenset()))
        if kind == KEEP:
            return nothing
        if kind == SPILL:
            return self._with_spilling(nothing, kind, self._wanted(first, last))
        if kind == CHEAP_SPILL:
            kept, _ = self._kept(CHEAP, first, last)
            return self._with_spilling(self.choice(CHEAP, first, last), kind, kept)
        kept, added = self._kept(kind, first, last)
        wanted = self._wanted(first, last)
        recomputed = self._closure([v for v in wanted if v not in kept], kept, first, last)
        if not recomputed:
            return nothing
        costs = [self._costs[node] for node in {v.node for v in recomputed if v.node is not None}]
        return Choice(
            kind,
            Segment(first, last, frozenset(recomputed)),
            sum(_bytes(v) for v in wanted if v not in kept) - added,
            sum(cost.flops for cost in costs),
            sum(self._speeds.seconds(cost) for cost in costs),
        )

    def _with_spilling(self, choice: Choice, kind: str, kept: Iterable[Value]) -> Choice:
        """Spills as much as possible of what a choice keeps, largest values first."""
        if self._spilling is None:
            return choice
        left, spilled = self._spilling.max_bytes, []
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
            seconds=choice.seconds + size * self._spilling.seconds_per_byte,
            spilled_bytes=size,
        )

    def _wanted(self, first: int, last: int) -> list[Value]:
        """Values of the layers that only their own backward passes read, last first."""
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
        """Values that are kept, and the bytes of those that would not be alive otherwise."""
        wanted = self._wanted(first, last)
        kept, added = set(wanted), 0
        for value in wanted:
            if not self._can_recompute(kind, value.node):
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
        """Other values that must be kept so that a value can be recomputed."""
        needed: set[Value] = set()
        seen, stack = {value}, [value]
        while stack:
            for operand in self._operands(stack.pop()):
                if operand in seen or operand in kept or self._is_alive(operand, first, last):
                    continue
                seen.add(operand)
                assert operand.node is not None
                inside = first <= operand.node.layer <= last
                if inside and self._can_recompute(kind, operand.node):
                    stack.append(operand)
                else:
                    needed.add(operand)
        return needed

    def _closure(
        self, values: Sequence[Value], kept: set[Value], first: int, last: int
    ) -> set[Value]:
        """These values and those that they are recomputed from."""
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
        """Whether a value is alive in the backward pass of the layers in any case."""
        made = value.node
        if made is None or made.op == "constant" or made.direction != "forward":
            return True
        if value in self._held:
            return True
        if first <= made.layer <= last:
            return value in self._readers and not self._is_own(value, first, last)
        return value in self._readers

    def _can_recompute(self, kind: str, node: Optional[Node]) -> bool:
        """Whether a kind of choice may recompute a node."""
        if node is None:
            return False
        cost: Cost = self._costs[node]
        moved = cost.bytes_read + cost.bytes_written
        return kind == WHOLE or cost.flops <= CHEAP_FLOPS_A_BYTE * moved

    def _operands(self, value: Value) -> list[Value]:
        """Operands that a value is recomputed from, through views."""
        if value not in self._operands_of:
            assert value.node is not None
            operands = recompute_recipe(value.node, [value]).inputs
            self._operands_of[value] = [viewed(operand) for operand in operands]
        return self._operands_of[value]


def _bytes(value: Value) -> int:
    return value.type.max_bytes if value.type.is_bounded else 0


Memory = Callable[[Sequence[Choice]], int]


@dataclass(frozen=True)
class Fitting:
    """The choices for a step that did not fit.

    Attributes:
        choices: for each segment; every layer is in one.
        needed_bytes: activations, gradients and scratch memory without the choices.
        planned_bytes: the same with the choices.
        flops: operations of the step without the choices.
        least_bytes: the memory with all possible spilling, if the step does not fit and nothing can
            be spilled; else None.
    """

    choices: tuple[Choice, ...]
    needed_bytes: int
    planned_bytes: int
    budget_bytes: int
    flops: int
    least_bytes: Optional[int] = None

    @property
    def fits(self) -> bool:
        """Whether it fits in the budget."""
        return self.planned_bytes <= self.budget_bytes

    @property
    def seconds(self) -> float:
        """Additional time of a step, predicted."""
        return sum(choice.seconds for choice in self.choices)

    def __str__(self) -> str:
        """The choices, their reason and cost in one line."""
        count = {kind: self._layers(kind) for kind in (KEEP, *KINDS)}
        layers, cheap = sum(count.values()), count[CHEAP] + count[CHEAP_SPILL]
        parts = []
        if count[WHOLE] or cheap:
            text = f"{count[WHOLE] or cheap} of {layers} layers are recomputed"
            longest = max(c.segment.last - c.segment.first + 1 for c in self.choices)
            if longest > 1:
                text += f", {longest} at a time"
            if cheap:
                text += f", {cheap} in their cheap part" if count[WHOLE] else " in their cheap part"
            parts.append(text)
        if self.spilled_bytes:
            spilling = count[SPILL] + count[CHEAP_SPILL]
            parts.append(
                f"{spilling} of {layers} layers spill {_gb(self.spilled_bytes)} to memoryx_dir"
            )
        more = sum(choice.flops for choice in self.choices) / max(self.flops, 1)
        return (
            f"activations: {_gb(self.needed_bytes)} do not fit in {_gb(self.budget_bytes)}: "
            f"{'; '.join(parts) or 'nothing can be saved'}, which takes {_gb(self.planned_bytes)}; "
            f"+{more:.0%} operations per step, predicted +{seconds(self.seconds)}"
        )

    @property
    def spilled_bytes(self) -> int:
        """Bytes that a step writes to disk and reads again."""
        return sum(choice.spilled_bytes for choice in self.choices)

    def _layers(self, kind: str) -> int:
        found = (c.segment for c in self.choices if c.kind == kind)
        return sum(segment.last - segment.first + 1 for segment in found)


@dataclass(frozen=True)
class SpillSpace:
    """A store that activations may be spilled to.

    Attributes:
        read_bytes_per_s: speed of its disk.
        write_bytes_per_s: speed of its disk.
        busy_s: seconds for which a step uses the disk without spilling.
    """

    max_bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    busy_s: float


@dataclass(frozen=True)
class Budget:
    """Memory for activations, gradients and scratch memory.

    Attributes:
        speeds: returns the speeds of this computer; called if a step does not fit.
        report: is called with the choices if a step does not fit.
        spill_space: returns where a program may spill; None if it cannot.
        finds_least: whether to find the least memory with spilling, for the error of a step that
            does not fit.
    """

    bytes: int
    speeds: Callable[[], Speeds]
    report: Callable[[Fitting], None]
    spill_space: Callable[[Program], Optional[SpillSpace]] = lambda program: None
    finds_least: bool = True


def fit_activations(
    step: StepGraph, layers: int, program: Program, budget: Budget, streaming: bool = True
) -> frozenset[Value]:
    """Changes a step so that its activations fit, or need the least memory that was found.

    Args:
        step: in schedule order, fused; changed in place.
        program: assembled from the step, too large for the budget.
        streaming: weight streaming mode, in which activations can be spilled.

    Returns:
        The activations to spill, for the assembler.
    """
    scratch, speeds = program.scratch_bytes, budget.speeds()
    available = budget.bytes - scratch

    def chosen(spilling: Optional[Spilling]) -> tuple[list[Choice], int]:
        """The best choices, and their bytes."""
        memory = _Planned(step, program, spilling)
        activations = Activations(step, program, speeds, spilling)
        found = choose(activations, layers, memory, available)
        if memory(found) > available:
            found = min(found, join_layers(activations, layers, memory, available), key=memory)
        return found, memory(found)

    space = budget.spill_space(program) if streaming else None
    choices, taken = chosen(
        None if space is None else _spilling_cost(space, program, available, speeds)
    )
    least: Optional[int] = None
    if taken > available and space is None and streaming and budget.finds_least:
        _, least = chosen(Spilling(program.arena_bytes, 0.0))
        least += scratch
    recompute_activations(step.graph, segments_of(choices))
    needed = program.arena_bytes + scratch
    fitting = Fitting(tuple(choices), needed, taken + scratch, budget.bytes, program.flops, least)
    budget.report(fitting)
    return _spilled(segments_of(choices))


def _spilling_cost(space: SpillSpace, program: Program, available: int, speeds: Speeds) -> Spilling:
    """The cost of spilling: a copy, and the time of the disk that computing does not hide.

    The disk's idle time is shared by all bytes that do not fit.
    """
    slots = program.slots
    groups = [entry.slots for entry in program.schedule if isinstance(entry, StreamIn)]
    sizes = [sum(slots[slot].type.max_bytes for slot in group) for group in groups]
    weights = max((layer.weight_bytes for layer in program.layers), default=0)
    # A third: one group is used while one is read and one written. The largest group, usually of an
    # update, is in memory in any case.
    most = max(space.max_bytes // 3, max(sizes, default=0)) - weights
    computing_s = sum(speeds.seconds(item.cost) for item in program.instructions())
    per_byte = 1 / space.read_bytes_per_s + 1 / space.write_bytes_per_s
    moving_s = max(program.arena_bytes - available, 1) * per_byte
    hidden = min(max(computing_s - space.busy_s, 0.0) / moving_s, 1.0)
    return Spilling(max(most, 0), 2 / speeds.bytes_per_s + per_byte * (1 - hidden))


class _Planned:
    """Planned bytes of activation memory with some choices, cached."""

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
    """Bytes of the activation memory with these segments; the step does not change."""
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
    """The segments of choices other than KEEP."""
    return [choice.segment for choice in choices if choice.kind != KEEP]


@dataclass(frozen=True)
class _Move:
    """A layer's change from one choice to a more expensive one that saves more."""

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
        """Seconds per byte, then the layer: low layers come last in the backward pass."""
        return (self.seconds / self.saved_bytes, self.layer)


def choose(activations: Activations, layers: int, memory: Memory, available: int) -> list[Choice]:
    """One choice for each layer, of the least additional time that fits; else of least memory.

    Args:
        memory: planned bytes with some choices.
        available: bytes that may be planned.
    """
    start = [activations.choice(KEEP, layer, layer) for layer in range(layers)]
    moves = sorted(
        (move for keep in start for move in _moves(activations, keep)), key=lambda m: m.order
    )

    def with_moves(count: int) -> list[Choice]:
        found = list(start)
        for move in moves[:count]:
            found[move.layer] = move.after
        return found

    def fits(choices: Sequence[Choice]) -> bool:
        return memory(choices) <= available

    count = _fewest(
        lambda count: fits(with_moves(count)), len(moves), _guess(moves, memory(start) - available)
    )
    choices = (
        _smallest(with_moves(len(moves)), moves, memory) if count is None else with_moves(count)
    )
    if not fits(choices):
        return choices
    return _replace_expensive(_without_unneeded(choices, moves, fits), moves, memory, available)


def _guess(moves: Sequence[_Move], excess_bytes: int) -> int:
    """An estimate of the number of moves that fit."""
    for count, move in enumerate(moves, 1):
        excess_bytes -= move.saved_bytes
        if excess_bytes <= 0:
            return count
    return len(moves)


def _fewest(fits: Callable[[int], bool], most: int, guess: int) -> Optional[int]:
    """The least number from 1 to most that fits, searched from a guess; None if none does."""
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
    """Moves of a layer, each more expensive per byte than the one before."""
    layer = keep.segment.first
    moves: list[_Move] = []
    found = [activations.choice(kind, layer, layer) for kind in KINDS]
    for choice in sorted(found, key=lambda c: (c.saved_bytes, c.seconds)):
        before = moves[-1].after if moves else keep
        if choice.saved_bytes <= before.saved_bytes:
            continue
        move = _Move(layer, before, choice)
        while moves and move.order < moves[-1].order:  # the earlier one is dominated
            move = _Move(layer, moves.pop().before, choice)
        moves.append(move)
    return moves


def _smallest(choices: list[Choice], moves: Sequence[_Move], memory: Memory) -> list[Choice]:
    """Undoes moves that increase memory, as of layers that recompute at the peak."""
    least = memory(choices)
    for move in sorted(moves, key=lambda m: (-m.layer, -m.seconds)):
        if choices[move.layer] is move.after:
            trial = list(choices)
            trial[move.layer] = move.before
            found = memory(trial)
            if found > least:  # then lower layers do, too
                break
            choices, least = trial, found
    return choices


def _without_unneeded(
    choices: list[Choice], moves: Sequence[_Move], fits: Callable[[Sequence[Choice]], bool]
) -> list[Choice]:
    """Undoes moves that are not needed to fit, the most expensive first, then the highest layer.

    If one of several equal moves is needed, those of lower layers are, too.
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


def _replace_expensive(
    choices: list[Choice], moves: Sequence[_Move], memory: Memory, available: int
) -> list[Choice]:
    """Replaces expensive moves by cheaper ones that save enough: layers differ in size."""
    tried: set[tuple[int, float]] = set()
    for taken in sorted(moves, key=lambda m: (-m.seconds, -m.layer)):
        kind = (taken.saved_bytes, taken.seconds)
        if choices[taken.layer] is not taken.after or kind in tried:
            continue
        tried.add(kind)
        without = list(choices)
        without[taken.layer] = taken.before
        excess = memory(without) - available
        for move in _cheaper(taken, without, moves, excess):
            trial = list(without)
            trial[move.layer] = move.after
            if memory(trial) <= available:
                choices = trial
                break
    return choices


def _cheaper(
    taken: _Move, choices: list[Choice], moves: Sequence[_Move], excess: int
) -> list[_Move]:
    """Moves from some choices that save enough in less time than `taken`, the cheapest first.

    Of equal moves, only that of the lowest layer.
    """
    found: dict[tuple[float, int], _Move] = {}
    for move in moves:
        more = _Move(move.layer, choices[move.layer], move.after)
        enough = move.layer != taken.layer and more.saved_bytes >= excess > 0
        if enough and more.seconds < taken.seconds:
            found.setdefault((more.seconds, more.saved_bytes), more)
    return [found[key] for key in sorted(found)]


def join_layers(
    activations: Activations, layers: int, memory: Memory, available: int
) -> list[Choice]:
    """Recomputes segments of more and more layers: the first size that fits, or the smallest.

    Args: as for `choose`.
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
        if least is not None and needed >= least:  # larger segments need more than they save
            break
        best, least = choices, needed
        if needed <= available:
            break
        size += max(1, size // 2)
    return best
