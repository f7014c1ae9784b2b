"""Which sizes the symbols of a program have for the features that came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from cerebras_tf.ir import Dim, TensorType
from cerebras_tf.ir.program import RANDOM_STEP, Program


def solve_sizes(program: Program, types: Mapping[str, TensorType]) -> Optional[dict[str, int]]:
    """Size of every symbol of a program, beyond its bound perhaps.

    Args:
        program: types of its features hold numbers, symbols, and None for any number.
        types: of the features that came, by name; sizes are numbers.

    Returns:
        Sizes by name of the symbol; None where the features do not fit the program, or a size is
        beyond its limit.
    """
    sizes: dict[str, int] = {}
    for name, slot in program.features.items():
        wanted, given = program.slots[slot].type, types.get(name)
        if given is None:
            if name in (RANDOM_STEP, program.global_step) or name in program.draws:
                continue
            if program.packing is not None and name in program.packing.features:
                continue  # follows from the others
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
