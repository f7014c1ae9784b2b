"""A compiled program: what an executor runs at every step, as plain data.

Slots are the places of values, bodies hold the instructions that layers of equal shape share, and
the schedule is the order of work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np

from cerebras_tf.ir.binding import has_symbols, substitute, symbols_in, with_bounds
from cerebras_tf.ir.dimensions import Symbol
from cerebras_tf.ir.packing import Packing
from cerebras_tf.ir.schedule import Entry, Run
from cerebras_tf.ir.step import Draw
from cerebras_tf.ir.types import Array, TensorType

# Where the bytes of a slot are.
ARENA = "arena"  # at `offset` of the activation memory
HEAP = "heap"  # allocated when it is computed: its shape is known only then
VIEW = "view"  # memory of another slot, `base`
FEATURE = "feature"  # given at every step
VARIABLE = "variable"  # streamed in by name
CONSTANT = "constant"  # part of the program

# Names of what every session feeds and fetches besides the model's own tensors.
RANDOM_STEP = "random_step"  # feature, int64 []: earlier draws of each random op
# Feature, int64 []: as RANDOM_STEP, but equal on all wafers.
COMMON_RANDOM_STEP = f"{RANDOM_STEP}_of_all"
BEFORE = "before"  # the kind of a part of a step that draws what the step will draw again
GLOBAL_STEP_UPDATE = "global_step/update"  # result, int64 []: the global step after the step


@dataclass
class Slot:
    """Place of one value.

    Attributes:
        type: dtype and shape.
        offset: bytes from the start of the arena.
        base: slot that a view shows; -1 for others.
        life: of an arena slot, the first and last node (inclusive) at which it is alive.
    """

    type: TensorType
    kind: str
    offset: int = 0
    base: int = -1
    life: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Cost:
    """What one instruction costs.

    Attributes:
        flops: floating point operations; multiply and add count two.
        bytes_read: bytes of its operands.
        bytes_written: bytes of its results.
        scratch_bytes: memory that it uses only while it runs.
    """

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    scratch_bytes: int = 0


# The cost of an op on operands and results of some types, with some attributes.
Price = Callable[[str, Sequence[TensorType], Sequence[TensorType], dict[str, Any]], Cost]


@dataclass(frozen=True)
class Instruction:
    """One kernel call.

    Attributes:
        inputs: positions of its operands in the slot list of a run.
        attrs: Python literals, arrays, the graph of a fused body, programs of regions.
        source: name of the operation it came from, for messages.
    """

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any]
    source: str = ""
    cost: Cost = Cost()

    @functools.cached_property
    def has_symbols(self) -> bool:
        """Whether its attributes may depend on symbols; programs always may."""
        attrs = list(self.attrs.values())
        return has_symbols(attrs) or any(isinstance(value, Program) for value in attrs)

    @property
    def is_rounded(self) -> bool:
        """Whether the operands of its matrix products are rounded to bfloat16."""
        return self.attrs.get("compute") == "bfloat16"


@dataclass(frozen=True)
class Layer:
    """A layer and its variables.

    Attributes:
        variables: the variables that its forward and backward pass read.
        weight_bytes: bytes of these.
        slots: what else its update reads or writes, such as optimizer state.
        slot_bytes: bytes of these.
    """

    name: str
    variables: tuple[str, ...]
    weight_bytes: int
    slots: tuple[str, ...] = ()
    slot_bytes: int = 0


@dataclass
class Program:
    """Everything an executor needs to run a step.

    Attributes:
        bodies: instruction lists, shared by runs of equal shape.
        layers: the layers, in forward order; every variable belongs to at most one of them.
        features: slot of every feature, by name.
        variables: slot of every variable's value at the start of the step, by name.
        results: slot of every wanted value, by name.
        gradients: slots of the gradients of a variable, by its name: of a dense gradient, or of
            rows and their indices; for each loss that is differentiated.
        staged: slot of every value that is spilled to the store, by its name there.
        draws: random ops whose invocations differ in size, by the feature that holds their seeds.
        packing: how a batch's real tokens are found; None if padding is not removed.
        global_step: name of the feature that is the global step; "" if nothing reads it.
        arena_bytes: size of the activation memory.
        wafers: number of wafers that run it together.
        owners: with several wafers, the rank that stores a variable, by name; variables that all
            wafers keep are not listed.
    """

    slots: list[Slot] = field(default_factory=list)
    constants: dict[int, Array] = field(default_factory=dict)
    bodies: list[list[Instruction]] = field(default_factory=list)
    schedule: list[Entry] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    features: dict[str, int] = field(default_factory=dict)
    variables: dict[str, int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    staged: dict[str, int] = field(default_factory=dict)
    draws: dict[str, Draw] = field(default_factory=dict)
    packing: Optional[Packing] = None
    global_step: str = ""
    arena_bytes: int = 0
    wafers: int = 1
    owners: dict[str, int] = field(default_factory=dict)

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The sizes that differ from batch to batch."""
        return symbols_in([slot.type for slot in self.slots])

    @property
    def given(self) -> dict[str, TensorType]:
        """Types of the features that a user feeds, by name; a session computes the others."""
        made = {self.global_step, RANDOM_STEP, COMMON_RANDOM_STEP, *self.draws}
        if self.packing is not None:
            made |= self.packing.features
        return {n: self.slots[slot].type for n, slot in self.features.items() if n not in made}

    def at(self, sizes: Mapping[str, int], price: Price) -> Program:
        """Binds the symbols to sizes; every value keeps its offset.

        Instructions and slots without symbols are the same objects.

        Raises:
            GraphError: a symbol has no size, or one beyond its bound.
        """
        return self._with(lambda value: substitute(value, sizes), price)

    def bounded(self, bounds: Mapping[str, int], price: Price) -> Program:
        """A copy with other bounds, by name of a symbol; its memory must be planned again."""
        return self._with(lambda value: with_bounds(value, bounds), price, fresh=True)

    def priced(self, price: Price) -> Program:
        """A copy whose instructions cost what another backend says."""
        return self._with(lambda value: value, price, every=True)

    def _with(
        self, change: Callable[[Any], Any], price: Price, fresh: bool = False, every: bool = False
    ) -> Program:
        """A copy, types and attributes changed by a function; `fresh`: it shares no slot.

        With `every`, instructions get a new cost also if they do not change.
        """
        slots = [
            replace(slot, type=change(slot.type)) if fresh or has_symbols(slot.type) else slot
            for slot in self.slots
        ]
        same = [new.type is old.type for new, old in zip(slots, self.slots)]
        at = {entry.body: entry.slots for entry in self.schedule if isinstance(entry, Run)}

        def changed(item: Instruction, places: tuple[int, ...]) -> Instruction:
            if not (every or item.has_symbols) and all(
                same[places[i]] for part in (item.inputs, item.outputs) for i in part
            ):
                return item
            inputs, outputs = (
                [slots[places[i]].type for i in part] for part in (item.inputs, item.outputs)
            )
            attrs = {
                key: value._with(change, price, fresh, every)
                if isinstance(value, Program)
                else change(value)
                for key, value in item.attrs.items()
            }
            cost = price(item.op, inputs, outputs, attrs)
            return replace(item, attrs=attrs, cost=cost)

        bodies = [
            [changed(item, at[number]) for item in body] for number, body in enumerate(self.bodies)
        ]
        draws = {name: replace(d, size=change(d.size)) for name, d in self.draws.items()}
        packing = None if self.packing is None else self.packing.changed(change)
        return replace(self, slots=slots, bodies=bodies, draws=draws, packing=packing)

    def replace_seed(self, seed: int, other: int, draws: Callable[[Instruction], bool]) -> None:
        """Replaces the first seed of random ops, in regions too.

        Args:
            seed: the key to replace.
            draws: whether an instruction draws random numbers; its last operand are then the seeds.
        """
        read: set[int] = set()
        for entry in self.schedule:
            if isinstance(entry, Run):
                for item in self.bodies[entry.body]:
                    branches = any(isinstance(part, Program) for part in item.attrs.values())
                    given = item.inputs if branches else item.inputs[-1:] if draws(item) else ()
                    read.update(entry.slots[i] for i in given)
        for slot in read & self.constants.keys():
            content = self.constants[slot]
            if content.dtype == "int64" and content.shape == (2,) and content[0] == seed:
                self.constants[slot] = np.array([other, content[1]], np.int64)
        for name, draw in self.draws.items():
            if draw.key == seed:
                self.draws[name] = replace(draw, key=other)
        for body in self.bodies:
            for item in body:
                for part in item.attrs.values():
                    if isinstance(part, Program):
                        part.replace_seed(seed, other, draws)

    def base_of(self, slot: int) -> int:
        """The slot that owns a slot's memory."""
        while self.slots[slot].kind == VIEW:
            slot = self.slots[slot].base
        return slot

    def is_fixed_view(self, run: Run, item: Instruction) -> bool:
        """Whether an instruction of a run is a view that stays valid from step to step.

        It is a reshape of memory that does not move. Views of views are made at every step.
        """
        if item.op != "reshape":
            return False
        slot = self.slots[run.slots[item.outputs[0]]]
        return slot.kind == VIEW and self.slots[slot.base].kind in (ARENA, CONSTANT)

    def computed(self, run: Run) -> list[Instruction]:
        """Instructions of a run that are called at every step, without fixed views."""
        return [item for item in self.bodies[run.body] if not self.is_fixed_view(run, item)]

    def shows_variable(self, slot: int) -> bool:
        """Whether a slot is the memory of a variable."""
        return self.slots[self.base_of(slot)].kind == VARIABLE

    @property
    def flops(self) -> int:
        """Floating point operations of one step."""
        return sum(item.cost.flops for item in self.instructions())

    @property
    def scratch_bytes(self) -> int:
        """The most scratch memory that a kernel uses."""
        return max((item.cost.scratch_bytes for item in self.instructions()), default=0)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of one step, in order; those of shared bodies once for each run."""
        for entry in self.schedule:
            if isinstance(entry, Run):
                yield from self.bodies[entry.body]
