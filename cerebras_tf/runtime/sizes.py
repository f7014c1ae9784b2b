"""Solves the sizes of a program's symbols, and finds what depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from cerebras_tf.ir import Dim, Graph, TensorType
from cerebras_tf.ir.binding import has_symbols, substitute
from cerebras_tf.ir.program import Instruction, Price, Program
from cerebras_tf.ir.schedule import Run


def solve_sizes(program: Program, types: Mapping[str, TensorType]) -> Optional[dict[str, int]]:
    """Size of every symbol of a program; it may exceed the bound.

    Args:
        program: types of its features hold numbers, symbols, and None for any number.
        types: types of a batch's features, by name; sizes are numbers.

    Returns:
        Sizes by name of the symbol; None where the features do not fit the program, or a size is
        beyond its limit.
    """
    sizes: dict[str, int] = {}
    for name, wanted in program.given.items():
        given = types.get(name)
        if given is None:
            return None
        if given.dtype != wanted.dtype or given.rank != wanted.rank:
            return None
        for dim, size in zip(wanted.shape, given.shape):
            if not _fits(dim, size, sizes):
                return None
    return sizes


def _fits(dim: object, size: object, sizes: dict[str, int]) -> bool:
    """Whether a dimension may be this number; notes the size of a symbol that is new."""
    if dim is None:
        return True
    if not isinstance(dim, Dim):
        return dim == size
    assert isinstance(size, int)
    (symbol,) = dim.symbols  # dimensions of features are single symbols
    return 0 < size <= symbol.limit and sizes.setdefault(symbol.name, size) == size


@dataclass(frozen=True)
class PlacedInstruction:
    """An instruction of a program, by its place there.

    Attributes:
        body: number of its body.
        at: its number there.
        item: the instruction.
        inputs: slots of its operands, in the first run of the body.
        outputs: slots of its results.
    """

    body: int
    at: int
    item: Instruction
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def keeps_kernel(self) -> bool:
        """Whether one kernel serves it at all sizes, as those of fused bodies do."""
        graphs = [part for part in self.item.attrs.values() if isinstance(part, Graph)]
        return bool(graphs) and not any(
            has_symbols(node.attrs) for graph in graphs for node in graph.nodes
        )

    def at_sizes(self, sizes: Mapping[str, int], price: Price) -> Instruction:
        """The instruction for one size a symbol; its price is that of the largest."""
        item = self.item
        if not item.has_symbols:
            return item
        attrs = {
            key: part.at(sizes, price) if isinstance(part, Program) else substitute(part, sizes)
            for key, part in item.attrs.items()
        }
        return Instruction(item.op, item.inputs, item.outputs, attrs, item.source, item.cost)


class SizeDependence:
    """The parts of a program that depend on sizes.

    Attributes:
        instructions: all of the program, body by body.
        sized: those that must be loaded again for other sizes.
        slots: numbers of the slots whose type depends on sizes.
    """

    def __init__(self, program: Program) -> None:
        self._types = [slot.type for slot in program.slots]
        self.slots = [i for i, type in enumerate(self._types) if has_symbols(type)]
        self._distinct = list({self._types[i] for i in self.slots})
        numbers = {type: number for number, type in enumerate(self._distinct)}
        self._numbers = [(i, numbers[self._types[i]]) for i in self.slots]
        first: dict[int, tuple[int, ...]] = {}
        for entry in program.schedule:
            if isinstance(entry, Run):
                first.setdefault(entry.body, entry.slots)
        self.instructions = [
            PlacedInstruction(
                body,
                at,
                item,
                tuple(first[body][i] for i in item.inputs),
                tuple(first[body][i] for i in item.outputs),
            )
            for body, items in enumerate(program.bodies)
            for at, item in enumerate(items)
        ]
        depends = set(self.slots)
        self.sized = [
            placed
            for placed in self.instructions
            if (placed.item.has_symbols or depends.intersection(placed.inputs + placed.outputs))
            and not placed.keeps_kernel
        ]

    def types(self, sizes: Mapping[str, int]) -> list[TensorType]:
        """Types of all slots for one size a symbol; raises GraphError as TensorType.at does."""
        found = list(self._types)
        known = [type.at(sizes) for type in self._distinct]
        for slot, number in self._numbers:
            found[slot] = known[number]
        return found
