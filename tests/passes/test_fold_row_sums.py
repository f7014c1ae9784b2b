"""Sums of rows are added to a table that is there, where nobody else reads them."""

from __future__ import annotations

import pytest

from cerebras_tf.passes.fold_row_sums import fold_row_sums
from tests.graphs import check_pass, graph_of

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
