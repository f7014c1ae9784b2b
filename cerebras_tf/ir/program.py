"""A compiled program: what a machine runs at every step, as plain data.

Slots say where every value lives, bodies hold the instructions that layers of the same shape share,
and steps say what happens in which order. This file deliberately executes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from cerebras_tf.ir.types import Array, TensorType

# Where the bytes of a slot are.
ARENA = "arena"  # at `offset` of the machine's activation memory
HEAP = "heap"  # allocated when made: its shape is known only then
VIEW = "view"  # other bytes of another slot, `base`
FEATURE = "feature"  # given at every step
VARIABLE = "variable"  # streamed in by name
CONSTANT = "constant"  # part of the program


@dataclass
class Slot:
    """Place of one value.

    Attributes:
        type: dtype and shape.
        kind: one of the kinds above.
        name: of the feature or variable; "" for others.
        offset: bytes from the start of the arena.
        base: slot that a view looks into; -1 for others.
    """

    type: TensorType
    kind: str
    name: str = ""
    offset: int = 0
    base: int = -1


@dataclass(frozen=True)
class Instruction:
    """One kernel call; inputs and outputs are positions in a body's slot list."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any]
    source: str = ""


@dataclass(frozen=True)
class StreamIn:
    """Weights of a layer arrive: slots of variables become readable."""

    layer: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """A body runs on a list of slots. `direction` is forward, backward or update."""

    layer: int
    direction: str
    body: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class StreamOut:
    """New values leave: (variable name, slot that holds its value after the step)."""

    layer: int
    stores: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Free:
    """Slots nobody reads any more."""

    slots: tuple[int, ...]


Step = Union[StreamIn, Run, StreamOut, Free]


@dataclass(frozen=True)
class Layer:
    """A layer: what its weights are called in common, and which variables it streams."""

    name: str
    variables: tuple[str, ...]
    weight_bytes: int


@dataclass
class Program:
    """Everything a machine needs to run a step.

    Attributes:
        slots: places of all values.
        constants: contents of constant slots.
        bodies: instruction lists, shared by runs of equal shape.
        steps: the schedule.
        layers: the layers, in forward order.
        features: slot of every feature, by name.
        variables: slot of every variable's value at the start of the step, by name.
        results: slot of every wanted value, by name.
        arena_bytes: size of the activation memory.
        flops: floating point operations of one step.
    """

    slots: list[Slot] = field(default_factory=list)
    constants: dict[int, Array] = field(default_factory=dict)
    bodies: list[list[Instruction]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    features: dict[str, int] = field(default_factory=dict)
    variables: dict[str, int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)
    arena_bytes: int = 0
    flops: int = 0
