"""How loops run: carries that swap, no iterations, many, memory that moves."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.assemble import assemble_region
from cerebras_tf.ir import TensorType
from cerebras_tf.ir.program import Instruction
from cerebras_tf.kernels.scratch import borrow
from cerebras_tf.runtime.cpu import CpuBackend
from tests.graphs import graph_of

F3 = TensorType("float32", (3,))
COUNT = TensorType("int32", ())


def scan(build, inputs, outputs, **attrs):
    """The call of a scan of 4 iterations over [carries, xs, consts] of these types."""
    backend = CpuBackend()
    given = {"carries": 0, "xs": 0, "length": 4, "reverse": False, "counted": False, **attrs}
    first = int(given["counted"])
    slices = [
        t.with_shape(t.shape[1:]) if given["carries"] <= at < given["carries"] + given["xs"] else t
        for at, t in enumerate(inputs[first:])
    ]
    body = assemble_region(graph_of(build, *map(str, slices)), backend.price)
    item = Instruction("scan", (), (), {"body": body, **given}, "loop")
    return backend.load(item, inputs, outputs)


def swap(b, x, y):
    return [y, b.op("add", x, 1.0)]


@pytest.mark.parametrize("placed", [True, False], ids=["in arrays", "in new arrays"])
def test_carries_that_swap_are_not_overwritten(placed):
    call = scan(swap, [F3, F3], [F3, F3], carries=2)
    x, y = np.zeros(3, np.float32), np.full(3, 10, np.float32)
    out = [np.empty(3, np.float32) if placed else None for _ in range(2)]
    first, second = call([x, y], out)
    np.testing.assert_array_equal(first, x + 2)
    np.testing.assert_array_equal(second, y + 2)
    assert (first is out[0]) is placed


@pytest.mark.parametrize("count", [-1, 0, 2, 9])
def test_iterations_beyond_the_count_give_zeros(count):
    stack = TensorType("float32", (4, 3))
    types = [COUNT, F3, stack]

    def add(b, total, x):
        total = b.op("add", total, x)
        return [total, x]

    call = scan(add, types, [F3, stack], carries=1, xs=1, counted=True)
    xs = np.arange(12, dtype=np.float32).reshape(4, 3)
    total, ys = call([np.int32(count), np.ones(3, np.float32), xs], [None, None])
    steps = min(max(count, 0), 4)
    np.testing.assert_array_equal(total, 1 + xs[:steps].sum(0))
    np.testing.assert_array_equal(ys[:steps], xs[:steps])
    assert not ys[steps:].any()


def test_a_thousand_iterations_follow_their_memory_when_it_moves():
    def add(b, total):
        return [b.op("add", total, 1.0)]

    call = scan(add, [F3], [F3], carries=1, length=1000)
    for size in (0, 1 << 12, 1 << 22):
        with borrow((size,), np.uint8) as held:
            held[:] = 0x5A
            (total,) = call([np.zeros(3, np.float32)], [None])
            assert np.all(held == 0x5A)
        np.testing.assert_array_equal(total, np.full(3, 1000.0))
