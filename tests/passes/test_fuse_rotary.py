"""Rotary position embedding is recognised, before the heads are transposed where they are.

Letters: B batch, A heads, S length, D head width.
"""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.fuse_rotary import fuse_rotary
from tests.graphs import check_pass, graph_of, ops_of, random_inputs, run_plain

B, A, S, D = 2, 3, 5, 8
HEADS, TABLE = f"float32[{B},{A},{S},{D}]", f"float32[{B},1,{S},{D}]"
SWAP = (0, 2, 1, 3)


def half(b, x, first, size=D // 2):
    starts, sizes = (*(0,) * (x.type.rank - 1), first), (*x.shape[:-1], size)
    return b.op("slice", x, starts=starts, sizes=sizes, strides=(1,) * x.type.rank)


def turned(b, x):
    parts = b.op("neg", half(b, x, D // 2)), half(b, x, 0)
    return b.op("concat", *parts, axis=x.type.rank - 1)


def llama(b, x, cos, sin):
    return b.op("add", b.op("mul", x, cos), b.op("mul", turned(b, x), sin))


def in_another_order(b, x, cos, sin):
    return b.op("add", b.op("mul", sin, turned(b, x)), b.op("mul", cos, x))


@pytest.mark.parametrize("form", [llama, in_another_order])
@pytest.mark.parametrize("table", [TABLE, f"float32[{S},{D}]", HEADS])
def test_rotary_is_recognised(form, table):
    assert check_pass(graph_of(form, HEADS, table, table), fuse_rotary) == ["rotary"]


@pytest.mark.parametrize("table", [TABLE, f"float32[{S},{D}]", f"float32[{D}]"])
def test_a_transpose_of_the_heads_moves_after_it_and_tables_are_not_copied(table):
    def build(b, x, cos, sin):
        return b.op("neg", llama(b, b.op("transpose", x, permutation=SWAP), cos, sin))

    graph = graph_of(build, f"float32[{B},{S},{A},{D}]", table, table)
    ops = check_pass(graph, fuse_rotary)
    assert [op for op in ops if op != "reshape"] == ["rotary", "transpose", "neg"]


def other_halves(b, x, cos, sin):
    parts = b.op("neg", half(b, x, 0)), half(b, x, D // 2)
    return b.op("add", b.op("mul", x, cos), b.op("mul", b.op("concat", *parts, axis=3), sin))


def uneven(b, x, cos, sin):
    parts = b.op("neg", half(b, x, 3, D - 3)), half(b, x, 0, 3)
    return b.op("add", b.op("mul", x, cos), b.op("mul", b.op("concat", *parts, axis=3), sin))


def of_two_values(b, x, cos, sin):
    return b.op("add", b.op("mul", b.op("exp", x), cos), b.op("mul", turned(b, x), sin))


@pytest.mark.parametrize("form", [other_halves, uneven, of_two_values])
def test_what_is_not_a_rotation_of_halves_stays(form):
    assert "rotary" not in check_pass(graph_of(form, HEADS, TABLE, TABLE), fuse_rotary)


def test_tables_of_two_shapes_stay():
    graph = graph_of(llama, HEADS, TABLE, f"float32[{S},{D}]")
    assert "rotary" not in check_pass(graph, fuse_rotary)


def test_gradients_by_the_heads_and_by_tables_are_those_without_the_op():
    def build(b, x, cos, sin):
        heads = b.op("transpose", x, permutation=SWAP)
        y = b.op("sin", llama(b, heads, cos, sin))
        return b.multi("gradient", y, y, heads, x, cos, sin, ys=1, dys=(True,), xs=4)

    types = f"float32[{B},{S},{A},{D}]", TABLE, TABLE
    fused, plain = graph_of(build, *types), graph_of(build, *types)
    fuse_rotary(fused)
    for graph in (fused, plain):
        differentiate(graph)
    assert "rotary" in ops_of(fused)
    arrays = random_inputs(plain)
    for found, wanted in zip(run_plain(fused, arrays), run_plain(plain, arrays)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
