"""Prices follow from op, types and attributes."""

from __future__ import annotations

import pytest

from cerebras_tf.ir import Dim, parse_type
from cerebras_tf.ir.program import Cost, Instruction, Program
from cerebras_tf.ir.schedule import Run
from cerebras_tf.ops.cost import price, price_at_bounds

PRODUCT = {"transpose_a": False, "transpose_b": False}


def priced(op, inputs, outputs, **attrs):
    types = [[parse_type(text) for text in part] for part in (inputs, outputs)]
    return price(op, *types, attrs)


def test_a_product_counts_multiply_and_add_and_all_that_it_moves():
    found = priced("matmul", ["float32[3,4]", "float32[4,5]"], ["float32[3,5]"], **PRODUCT)
    assert found == Cost(2 * 3 * 4 * 5, 4 * (12 + 20), 4 * 15, 0)


def test_half_types_move_half_the_bytes():
    found = priced("add", ["bfloat16[8]", "bfloat16[8]"], ["bfloat16[8]"])
    assert (found.bytes_read, found.bytes_written) == (32, 16)


@pytest.mark.parametrize(
    ("op", "outputs", "attrs"),
    [
        ("reshape", ["float32[12]"], {"shape": (12,)}),
        ("parameter_gradient", ["float32[3,4]"], {"variable": "w"}),
    ],
)
def test_views_cost_nothing(op, outputs, attrs):
    assert priced(op, ["float32[3,4]"], outputs, **attrs) == Cost()


def test_picking_reads_what_it_returns_and_not_the_whole_table():
    inputs, attrs = ["float32[1000,8]", "int64[5]"], {"axis": 0, "batch_dims": 0}
    found = priced("gather", inputs, ["float32[5,8]"], **attrs)
    assert (found.bytes_read, found.bytes_written) == (4 * 40 + 8 * 5, 4 * 40)


def test_more_may_be_picked_than_there_is():
    inputs, attrs = ["float32[2,8]", "int64[50]"], {"axis": 0, "batch_dims": 0}
    assert priced("gather", inputs, ["float32[50,8]"], **attrs).bytes_read == 4 * 16 + 8 * 50


def test_sizes_that_only_the_data_tells_count_nothing():
    found = priced("matmul", ["float32[?,4]", "float32[4,5]"], ["float32[?,5]"], **PRODUCT)
    assert found == Cost(0, 4 * 20, 0, 0)


def branch(flops, arena, scratch):
    item = Instruction("exp", (), (), {}, "", Cost(flops, 0, 0, scratch))
    return Program(bodies=[[item]], schedule=[Run(0, "forward", 0, ())], arena_bytes=arena)


def test_a_conditional_costs_what_its_dearer_branch_does():
    branches = {"then": branch(100, 10, 7), "orelse": branch(30, 20, 1)}
    found = priced("cond", ["bool[]", "float32[4]"], ["float32[4]"], **branches)
    assert found == Cost(100, 1 + 16, 16, 21)


def test_symbols_are_priced_at_their_bound():
    rows = Dim.symbol("R", 8, 64)
    asked = []

    def seen(op, inputs, outputs, attrs):
        asked.append((inputs, outputs, attrs))
        return price(op, inputs, outputs, attrs)

    types = parse_type("float32[R<=8<=64,4]"), parse_type("float32[R<=8<=64,2,2]")
    price_at_bounds(seen, "reshape", types[:1], types[1:], {"shape": (rows, 2, 2)})
    assert asked == [
        ([parse_type("float32[8,4]")], [parse_type("float32[8,2,2]")], {"shape": (8, 2, 2)})
    ]
    found = price_at_bounds(price, "exp", types[:1], types[:1], {})
    assert (found.bytes_read, found.bytes_written) == (4 * 32, 4 * 32)
