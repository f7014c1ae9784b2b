"""Which additive masks hide later positions for every size they may have."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import Dim, Graph, TensorType, Value, bind_graph
from cerebras_tf.ir.dimensions import UNLIMITED
from cerebras_tf.ops import Builder
from cerebras_tf.ops.sizes import counted, counts
from cerebras_tf.passes.causal_mask import HIDDEN, is_causal, split_causal
from tests.graphs import run_plain

S, T = Dim.symbol("S", 9), Dim.symbol("T", 9)
SUM = {"exclusive": False, "reverse": False}


@pytest.fixture
def b():
    return Builder(Graph())


def hidden(b: Builder, seen: Value) -> Value:
    """0 where a position is seen, HIDDEN where not, with two leading axes."""
    visible = b.op("cast", seen, dtype="float32")
    mask = b.op("mul", b.op("sub", b.constant(1.0, "float32"), visible), HIDDEN)
    return b.op("reshape", mask, shape=(1, 1, *mask.shape))


def ones(b: Builder, *shape, dtype="float32") -> Value:
    return b.op("broadcast_to", b.constant(1, dtype), shape=shape)


def band(b: Builder, lower, upper, rows=S, columns=S) -> Value:
    return b.op("band_part", ones(b, rows, columns), lower=lower, upper=upper)


def compared(b: Builder, op: str, across: Value, down: Value) -> Value:
    return b.op(op, across, b.op("reshape", down, shape=(down.shape[0], 1)))


def places(b: Builder, size=S) -> Value:
    return counted(b, size, 1, "int32")


def summed(b: Builder) -> Value:
    """Keras's: running sums of ones along rows and columns, compared."""
    rows = b.op("cumsum", ones(b, S, 1, dtype="int32"), axis=0, **SUM)
    columns = b.op("cumsum", ones(b, 1, S, dtype="int32"), axis=1, **SUM)
    return b.op("greater_equal", rows, columns)


def cut(b: Builder, table: np.ndarray, start=0) -> Value:
    """The front of a constant table of 12 positions."""
    value = b.constant(table)
    return b.op("slice", value, starts=(start, start), sizes=(S, S), strides=(1, 1))


CAUSAL = [
    ("band_part", lambda b: band(b, -1, 0)),
    ("ranges", lambda b: compared(b, "less_equal", places(b), places(b))),
    ("running_sums", summed),
    ("front_of_a_table", lambda b: cut(b, np.tril(np.ones((12, 12), "f")))),
    ("end_of_a_table", lambda b: cut(b, np.tril(np.ones((12, 12), "f")), 12 - S)),
    ("middle_of_a_table", lambda b: cut(b, np.tril(np.ones((12, 12), "f")), 2)),
]


@pytest.mark.parametrize(("name", "seen"), CAUSAL, ids=[row[0] for row in CAUSAL])
def test_masks_of_symbolic_sizes_are_recognised(b, name, seen):
    mask = hidden(b, seen(b))
    assert is_causal(mask)
    b.graph.outputs = [mask]
    for size in (2, 5, 9):  # and so are their numbers
        (numbers,) = run_plain(bind_graph(b.graph, {"S": size}), [])
        assert is_causal(b.constant(numbers))


def windowed(b: Builder, width: int) -> Value:
    """Seen are the last `width` positions: less than all from width + 1 on."""
    return band(b, width - 1, 0)


def by_length(b: Builder) -> Value:
    """All positions of an odd kind of length are seen: elements depend on the size."""
    return b.op("logical_or", b.op("cast", band(b, -1, 0), dtype="bool"),
                b.op("less", counts(b, S, "int32"), 9))  # fmt: skip


OTHERS = [
    ("all_seen", lambda b: ones(b, S, S)),
    ("earlier_hidden", lambda b: band(b, 0, -1)),
    ("one_ahead", lambda b: band(b, -1, 1)),
    ("window", lambda b: windowed(b, 8)),
    ("of_the_length", by_length),
    ("from_the_end", lambda b: compared(
        b, "less_equal", counted(b, S, -1, "int32", S - 1), counted(b, S, -1, "int32", S - 1))),
    ("moving_part_of_a_table", lambda b: b.op("slice", b.constant(np.tril(np.ones((12, 12), "f"))),
        starts=(9 - S, 0), sizes=(S, S), strides=(1, 1))),
    ("two_lengths", lambda b: compared(b, "less_equal", places(b, T), places(b))),
    ("shuffled", lambda b: b.op("reshape", b.op("reshape", band(b, -1, 0), shape=(S * S,)),
        shape=(S, S))),
    ("rounded", lambda b: compared(b, "less_equal", *(
        b.op("cast", places(b), dtype="float16") for _ in range(2)))),
    ("data", lambda b: b.op("mul", band(b, -1, 0), b.graph.add_input(
        "x", TensorType("float32", (S, S))))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "seen"), OTHERS, ids=[row[0] for row in OTHERS])
def test_other_masks_are_not(b, name, seen):
    assert not is_causal(hidden(b, seen(b)))


def test_a_mask_that_hides_too_little_is_none(b):
    mask = b.op("mul", b.op("sub", band(b, -1, 0), b.constant(1.0, "float32")), -HIDDEN / 2)
    assert not is_causal(mask)


def test_masks_of_unlimited_sizes_are_recognised(b):
    length = Dim.symbol("L", 16, UNLIMITED)
    assert is_causal(hidden(b, band(b, -1, 0, length, length)))
    assert is_causal(hidden(b, compared(b, "less_equal", places(b, length), places(b, length))))


def test_new_positions_behind_others_end_in_the_corner(b):
    """As GPT-2's code has it: row i sees columns up to i - S + T."""
    rows, columns = S, S + 4
    offset = b.op("sub", counts(b, columns, "int32"), counts(b, rows, "int32"))
    down = b.op("add", places(b, rows), offset)
    assert is_causal(hidden(b, compared(b, "less_equal", places(b, columns), down)))
    plain = compared(b, "less_equal", places(b, columns), places(b, rows))
    assert not is_causal(hidden(b, plain))


def test_constant_masks_end_in_the_corner(b):
    rows, columns = 3, 5
    mask = np.where(np.arange(columns) > np.arange(rows)[:, None] + 2, HIDDEN, 0).astype("f")
    assert is_causal(b.constant(mask))
    assert is_causal(b.constant(mask[None, None]))
    assert not is_causal(b.constant(mask.T))
    assert is_causal(b.constant(np.stack([mask, mask])))
    assert not is_causal(b.constant(np.stack([mask, 0 * mask])))
    assert not is_causal(b.constant(np.roll(mask, 1, 1)))


def conjunction(b: Builder, *parts: Value) -> Value:
    """A bias [B, 1, S, S] of bool parts."""
    seen = parts[0]
    for part in parts[1:]:
        seen = b.op("logical_and", seen, part)
    return selected(b, b.op("broadcast_to", seen, shape=(3, 1, S, S)))


def selected(b: Builder, seen: Value, within: float = 0.0, past: float = -1e30) -> Value:
    return b.op("select", seen, b.constant(within, "float32"), b.constant(past, "float32"))


def test_a_mask_is_split_into_what_is_causal_a_window_and_masks_of_keys(b):
    real = b.graph.add_input("real", TensorType("bool", (3, 1, 1, S)))
    causal = compared(b, "less_equal", places(b), places(b))
    after = b.op("sub", places(b), b.constant(4, "int32"))
    window = compared(b, "greater", places(b), after)
    always = b.op("broadcast_to", b.constant(True, "bool"), shape=(1, 1, S, S))
    found = split_causal(conjunction(b, always, causal, real))
    assert found.seen == (real,) and found.window is None
    assert split_causal(conjunction(b, real, window, causal)).window == 4
    assert split_causal(conjunction(b, causal)).seen == ()
    other = b.graph.add_input("other", TensorType("bool", (3, 1, S, S)))
    for parts in ((real,), (real, window), (causal, real, other)):
        assert split_causal(conjunction(b, *parts)) is None
    assert split_causal(selected(b, causal, past=-5.0)) is None
    assert split_causal(selected(b, causal, within=1.0)) is None
