"""How many bytes a step sends between wafers, by its program alone.

    a copy of a variable, from its home along a chain:        its bytes, by all but the last wafer
    a mean that one wafer gets:                               its bytes, by all others
    a mean that all get (reduce-scatter, all-gather):         2 (N-1)/N of its bytes, by each
    a sum of small values, or rows laid behind one another:   N-1 times its bytes, by each

A variable is copied once for each time it is streamed, and once for neighbouring groups that both
use it (runtime/shared_store.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cerebras_tf.ir.program import Program
from cerebras_tf.ir.schedule import Free, OnWafer, Run, Share, Step, StreamIn
from cerebras_tf.runtime.shared_store import GROUPS_AHEAD

_GATHERED = ("wafer_sum", "wafer_concat")


def sent_bytes(program: Program) -> list[int]:
    """Bytes that each wafer sends in a step.

    Args:
        program: sizes with a bound are taken at the bound.

    Returns:
        Bytes by wafer; what wafers tell one another about data and checkpoints is left out.
    """
    wafers = program.wafers
    sent = [0] * wafers

    def copy(size: int, root: int) -> None:
        for place in range(wafers - 1):
            sent[(root + place) % wafers] += size

    for size, root in _copies(program):
        copy(size, root)
    for step in _of_all(program):
        for size, op, root in _collectives(program, step):
            if op in _GATHERED:
                sent[:] = [x + (wafers - 1) * size for x in sent]
            elif root < 0:
                sent[:] = [x + 2 * (wafers - 1) * size // wafers for x in sent]
            else:
                sent[:] = [x + size * (rank != root) for rank, x in enumerate(sent)]
    return sent


def _of_all(program: Program) -> Iterator[Step]:
    """The steps that every wafer runs."""
    skipped = 0
    for step in program.steps:
        if isinstance(step, OnWafer):
            skipped = step.count
        elif skipped:
            skipped -= 1
        else:
            yield step


def _copies(program: Program) -> Iterator[tuple[int, int]]:
    """(bytes, wafer that they set out from) of every copy to all others."""
    names = {slot: name for name, slot in program.variables.items()}
    groups = [step.slots for step in _of_all(program) if isinstance(step, StreamIn)]
    users: Counter[int] = Counter()
    held: set[int] = set()
    brought = used = 0
    for step in _of_all(program):
        if isinstance(step, StreamIn):
            used += 1
            for slots in groups[brought : used + GROUPS_AHEAD]:
                users.update(slots)
                for slot in slots:
                    home = program.homes.get(names.get(slot, ""))
                    if users[slot] == 1 and home is not None:
                        yield program.slots[slot].type.most_bytes, home
            brought = max(brought, min(used + GROUPS_AHEAD, len(groups)))
            held.update(step.slots)
        elif isinstance(step, Free):
            gone = held.intersection(step.slots)
            users.subtract(gone)
            held -= gone
        elif isinstance(step, Share):
            shared = [*step.slots, *(program.variables[name] for name in step.variables)]
            for slot in shared:
                yield program.slots[slot].type.most_bytes, step.wafer


def _collectives(program: Program, step: Step) -> Iterator[tuple[int, str, int]]:
    """(bytes, op, wafer that alone gets the result or -1) of what a body exchanges."""
    if not isinstance(step, Run):
        return
    for item in program.bodies[step.body]:
        if item.op == "mean_start" or item.op in _GATHERED:
            size = program.slots[step.slots[item.inputs[0]]].type.most_bytes
            yield size, item.op, item.attrs.get("root", -1)
