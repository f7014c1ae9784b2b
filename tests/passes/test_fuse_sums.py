"""Sums of squares are recognised over all axes, shared squares where they are asked for."""

from __future__ import annotations

import pytest

from cerebras_tf.passes.fuse_sums import fold_row_sums, fuse_sum_of_squares
from tests.graphs import check_pass, graph_of

TOLERANCE = (1e-5, 1e-6)


def total(b, squares, axes=(0, 1), keepdims=False):
    return b.op("sum", squares, axes=axes, keepdims=keepdims)


def of_square(b, x):
    return total(b, b.op("square", x))


def of_product(b, x):
    return total(b, b.op("mul", x, x))


def keeping_dimensions(b, x):
    return total(b, b.op("square", x), keepdims=True)


@pytest.mark.parametrize("form", [of_square, of_product, keeping_dimensions])
def test_a_sum_of_squares_is_recognised(form):
    graph = graph_of(form, "float32[3,5]")
    check_pass(graph, fuse_sum_of_squares, close=TOLERANCE)
    ops = [node.op for node in graph.nodes]
    assert "sum_of_squares" in ops and "sum" not in ops


def over_rows_only(b, x):
    return total(b, b.op("square", x), axes=(0,))


def of_another_product(b, x):
    return total(b, b.op("mul", x, b.op("neg", x)))


def of_squares_read_elsewhere(b, x):
    squares = b.op("square", x)
    return b.op("add", b.op("reshape", total(b, squares), shape=(1, 1)), squares)


@pytest.mark.parametrize("form", [over_rows_only, of_another_product, of_squares_read_elsewhere])
def test_other_sums_stay(form):
    graph = graph_of(form, "float32[3,5]")
    before = str(graph)
    fuse_sum_of_squares(graph)
    assert str(graph) == before


def test_shared_squares_are_summed_apart_where_that_is_asked_for():
    graph = graph_of(of_squares_read_elsewhere, "float32[3,5]")
    check_pass(graph, lambda graph: fuse_sum_of_squares(graph, shared=True), close=TOLERANCE)
    ops = [node.op for node in graph.nodes]
    assert "sum_of_squares" in ops and "square" in ops and "sum" not in ops


TYPES = "float32[5,3]", "int64[7]", "float32[7,3]"


def sums(b, ids, rows):
    return b.op("scatter_add_rows", ids, rows, num_rows=5)


def in_front(b, table, ids, rows):
    return b.op("add", sums(b, ids, rows), table)


def behind(b, table, ids, rows):
    return b.op("add", table, sums(b, ids, rows))


def of_two(b, table, ids, rows):
    return b.op("add", b.op("add", table, sums(b, ids, rows)), sums(b, ids, b.op("neg", rows)))


@pytest.mark.parametrize("form", [in_front, behind, of_two])
def test_rows_are_added_to_the_table(form):
    ops = check_pass(graph_of(form, *TYPES), fold_row_sums)
    assert "rows_add" in ops and not {"add", "scatter_add_rows"} & set(ops)


def read_otherwise(b, table, ids, rows):
    made = sums(b, ids, rows)
    return b.op("mul", b.op("add", table, made), made)


def wanted(b, table, ids, rows):
    made = sums(b, ids, rows)
    return b.op("add", table, made), made


def twice(b, table, ids, rows):
    made = sums(b, ids, rows)
    return b.op("add", made, made)


@pytest.mark.parametrize("form", [read_otherwise, wanted, twice])
def test_sums_that_are_read_otherwise_stay(form):
    graph = graph_of(form, *TYPES)
    before = str(graph)
    fold_row_sums(graph)
    assert str(graph) == before


def test_a_row_is_not_taken_for_a_table():
    graph = graph_of(behind, "float32[3]", *TYPES[1:])
    assert "add" in check_pass(graph, fold_row_sums)
