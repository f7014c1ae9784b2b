"""Micro-batches run layer by layer only where every variable is used in the same order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cerebras_tf.errors import CapacityError
from cerebras_tf.ir.schedule import Free, Run, StreamIn, StreamOut
from cerebras_tf.runtime.executor import LoadedEntry, groups_held
from cerebras_tf.runtime.interleave import count_together, interleave

NAMES = {0: "w0", 1: "w1", 2: "sum0", 3: "sum1", 4: "scale"}
SLOTS = {name: slot for slot, name in NAMES.items()}


def into(*names):
    return StreamIn(0, tuple(SLOTS[name] for name in names))


def free(*names):
    return Free(tuple(SLOTS[name] for name in names))


def out(*names):
    return StreamOut(0, tuple((name, SLOTS[name]) for name in names))


def run(layer, direction):
    return Run(layer, direction, 0, ())


FORWARD = [into("w0"), run(0, "forward"), free("w0"), into("w1"), run(1, "forward"), free("w1")]
FIRST = [*FORWARD, into("w1"), run(1, "backward"), free("w1"), run(1, "update"), out("sum1"),
         into("w0"), run(0, "backward"), free("w0"), run(0, "update"), out("sum0")]  # fmt: skip
LAST = [*FORWARD, into("w1", "sum1"), run(1, "backward"), free("sum1"), run(1, "update"),
        out("w1"), free("w1"), into("w0", "sum0"), run(0, "backward"), run(0, "update"),
        out("w0"), free("w0", "sum0")]  # fmt: skip


def executor(steps):
    return SimpleNamespace(names=NAMES, entries=[LoadedEntry(step) for step in steps])


class Memory:
    """A store that can hold so many variables at once."""

    memory_limit, total_resident_bytes = 100, 100

    def __init__(self, most=9):
        self.most = most

    def require_memory(self, groups):
        if any(len(set(group)) > self.most for group in groups):
            raise CapacityError("too many")


def order(found):
    """(micro-batch, layer, direction) of everything that is computed, without updates."""
    runs = [
        (block.micro_batch, loaded.entry.layer, loaded.entry.direction)
        for block in found.blocks
        for loaded in block.entries
        if isinstance(loaded.entry, Run) and loaded.entry.direction != "update"
    ]
    return runs


def test_layers_of_micro_batches_alternate_and_weights_stream_in_in_that_order():
    found = interleave([executor(FIRST), executor(FIRST), executor(LAST)], 3, Memory())
    assert order(found) == [
        (number, layer, direction)
        for layer, direction in [(0, "forward"), (1, "forward"), (1, "backward"), (0, "backward")]
        for number in range(3)
    ]
    weights = [names[0] for names in found.acquisitions]
    assert weights == [*["w0"] * 3, *["w1"] * 6, *["w0"] * 3]


def test_so_many_alternate_as_are_given_and_the_others_follow():
    found = interleave([executor(FIRST), executor(FIRST), executor(LAST)], 2, Memory())
    numbers = [number for number, *_ in order(found)]
    assert numbers == [0, 1] * 4 + [2] * 4
    one = interleave([executor(FIRST), executor(LAST)], 1, Memory())
    assert [number for number, *_ in order(one)] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    "first, last",
    [
        # The last micro-batch changes a variable before the first one has read it.
        ([*FIRST, into("scale"), free("scale")],
         [into("scale"), run(0, "forward"), out("scale"), free("scale"), *LAST[1:]]),
        ([*FORWARD, into("w1"), run(1, "backward"), run(1, "update"), out("sum1"),
          into("w0"), run(0, "backward"), out("sum0"), free("w0", "w1")], LAST),
        # Their layers have another order.
        ([*FIRST, run(7, "backward")], LAST),
        (FIRST, [into("w1"), run(1, "forward"), free("w1"), *LAST[6:]]),
    ],
)  # fmt: skip
def test_another_order_of_uses_is_refused(first, last):
    assert interleave([executor(first), executor(last)], 2, Memory()) is None
    assert interleave([executor(first), executor(last)], 1, Memory()) is not None


def test_a_variable_is_held_until_the_last_micro_batch_frees_it():
    entries = [(0, into("w0")), (1, into("w0")), (0, free("w0")), (1, into("w1"))]
    found = groups_held((number, NAMES, entry) for number, entry in entries)
    assert found == [["w0"], ["w0"], ["w0", "w1"]]


def test_what_is_held_together_must_fit_into_the_store():
    several = [executor(FIRST), executor(LAST)]
    assert interleave(several, 2, Memory(2)) is not None
    assert interleave(several, 2, Memory(1)) is None


@pytest.mark.parametrize(
    "memory, limit, total, count",
    [(10**6, 100, 100, 4), (3 * 8192 + 500, 100, 100, 3), (0, 100, 100, 1), (10**6, 100, 99, 1),
     (10**6, None, 100, 1)],
)  # fmt: skip
def test_as_many_run_together_as_fit_where_weights_do_not_stay_in_memory(
    memory, limit, total, count
):
    program = SimpleNamespace(arena_bytes=5000, scratch_bytes=500)
    store = SimpleNamespace(memory_limit=limit, total_resident_bytes=total)
    assert count_together([program] * 4, store, memory) == count
