"""Computes from a program's memory plan which smaller batch would fit.

Values of the arena either grow with the batch or have the same size for every batch, such as
gradients of variables. At every point of the schedule, a batch k times smaller needs the latter and
a k-th of the former.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.ir import Dim, TensorType
from cerebras_tf.ir.program import ARENA, Program

_MARGIN = 1.02  # for padding between values, which differs from plan to plan


def with_advice(
    error: BatchCapacityError, program: Program, rows: int, micro_batches: Optional[int]
) -> BatchCapacityError:
    """The error with the batch size and the number of micro-batches that fit, if there are any.

    Args:
        error: states what the program needs and what is available.
        program: the program of the batch, or of one micro-batch.
        micro_batches: current number of micro-batches; None if the model cannot use them.
    """
    advice = _advice(error, program, rows, micro_batches)
    if not advice:
        return error
    return BatchCapacityError(
        f"{error} {advice}", error.needed_bytes, error.available_bytes, error.fixed_bytes
    )


def _advice(
    error: BatchCapacityError, program: Program, rows: int, micro_batches: Optional[int]
) -> str:
    state, found = error.fixed_bytes, []
    curve = list(_live_bytes(program, rows))
    if micro_batches is not None:
        # Accumulated gradients are state as well, if state counts.
        sums = 0
        if state and micro_batches == 1:
            slots = [program.slots[program.variables[name]] for name in program.gradients]
            sums = sum(slot.type.max_bytes for slot in slots)
        for parts in _divisors(rows):
            needed = state + sums + _needed(program, curve, parts)
            if needed <= error.available_bytes:
                found.append(f"micro_batches: {micro_batches * parts} ({needed / 1e9:.3g} GB)")
                break
    if micro_batches in (None, 1):
        for parts in _divisors(rows):
            needed = state + _needed(program, curve, parts)
            if needed <= error.available_bytes:
                found.append(f"a batch size of {rows // parts} ({needed / 1e9:.3g} GB)")
                break
    return f"According to the memory plan, {' or '.join(found)} fits." if found else ""


def _divisors(rows: int) -> Iterator[int]:
    return (parts for parts in range(2, rows + 1) if rows % parts == 0)


def _live_bytes(program: Program, rows: int) -> Iterator[tuple[int, int]]:
    """(bytes of a fixed size, bytes that grow with the batch) at each point of the schedule."""
    variables = {str(program.slots[slot].type.shape) for slot in program.variables.values()}
    changes: dict[int, list[int]] = {}
    for slot in program.slots:
        if slot.kind != ARENA:
            continue
        grows = int(_grows(slot.type, rows) and str(slot.type.shape) not in variables)
        first, last = slot.life
        for point, sign in ((first, 1), (last + 1, -1)):
            changes.setdefault(point, [0, 0])[grows] += sign * slot.type.max_bytes
    fixed = growing = 0
    for point in sorted(changes):
        fixed, growing = fixed + changes[point][0], growing + changes[point][1]
        yield fixed, growing


def _grows(type: TensorType, rows: int) -> bool:
    return any(
        bool(dim.symbols) if isinstance(dim, Dim) else bool(dim) and dim % rows == 0
        for dim in type.shape
        if dim is not None
    )


def _needed(program: Program, curve: list[tuple[int, int]], parts: int) -> int:
    """Activations and scratch memory for a batch so many times smaller."""
    whole = max((fixed + growing for fixed, growing in curve), default=0)
    smaller = max((fixed + growing / parts for fixed, growing in curve), default=0)
    packing = program.arena_bytes / max(whole, 1)
    return int(_MARGIN * max(packing, 1) * smaller) + program.scratch_bytes
