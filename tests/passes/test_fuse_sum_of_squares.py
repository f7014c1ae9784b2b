"""Sums of squares are recognised over all axes, shared squares where they are asked for."""

from __future__ import annotations

import pytest

from cerebras_tf.passes.fuse_sum_of_squares import fuse_sum_of_squares
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
