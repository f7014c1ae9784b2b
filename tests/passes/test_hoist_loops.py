"""Work that is moved out of loops: the same results, and what is left inside."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.hoist_loops import hoist_loops
from tests.graphs import check_pass, graph_of, ops_of
from tests.ops.test_loops import body_of, scan_attrs, slice_of

TYPES = ("float32[4,3,5]", "float32[3,2]", "float32[7,2]", "float32[2]")


def joined_cell(b, h, x, w, bias):
    """h' = tanh([x, h] w + bias), and 2 h; h itself is what its gradient reads."""
    z = b.op("matmul", b.op("concat", x, h, axis=1), w, transpose_a=False, transpose_b=False)
    h = b.op("tanh", b.op("add", z, bias))
    return [h, b.op("mul", h, 2.0)]


def recurrent(b, x, h, w, bias, counted):
    body = body_of(joined_cell, h, slice_of(b, x, 0), w, bias)
    count = [b.constant(3, "int32")] if counted else []
    return b.multi("scan", *count, h, x, w, bias, **scan_attrs(body, 1, 1, 4, counted=counted))


def gradients(counted):
    def build(b, x, h, w, bias):
        last, ys = recurrent(b, x, h, w, bias, counted)
        both = b.op("add", b.op("sum", b.op("square", ys), axes=(0,), keepdims=False), last)
        loss = b.op("sum", both, axes=(0, 1), keepdims=False)
        return b.multi("gradient", loss, x, h, w, bias, ys=1, dys=(False,), xs=4)

    return graph_of(build, *TYPES)


def products_inside(graph):
    scans = [node for node in graph.nodes if node.op == "scan"]
    return [ops_of(node.attrs["body"]).count("matmul") for node in scans]


def test_products_of_slices_come_before_the_loop():
    graph = graph_of(lambda b, *xs: recurrent(b, *xs, False), *TYPES)
    check_pass(graph, hoist_loops)
    assert products_inside(graph) == [1]
    assert ops_of(graph).count("matmul") == 1


@pytest.mark.parametrize("counted", [False, True])
def test_gradients_of_weights_and_of_slices_follow_the_loop(counted):
    graph = gradients(counted)
    hoist_loops(graph)
    differentiate(graph)
    check_pass(graph, hoist_loops)
    assert products_inside(graph) == [1, 1]


def test_what_nothing_reads_is_dropped():
    def build(b, x, h, w, bias):
        def cell(b, h, n, x, w, bias):
            h, y = joined_cell(b, h, x, w, bias)
            return [h, b.op("add", n, 1.0), y]

        n = b.constant(np.float32(0))
        body = body_of(cell, h, n, slice_of(b, x, 0), w, bias)
        return b.multi("scan", h, n, x, w, bias, **scan_attrs(body, 2, 1, 4))[0]

    graph = graph_of(build, *TYPES)
    check_pass(graph, hoist_loops)
    (scan,) = [node for node in graph.nodes if node.op == "scan"]
    assert len(scan.outputs) == 1 and scan.attrs["carries"] == 1


def test_what_depends_on_weights_alone_is_computed_once():
    def build(b, x, h, w, bias):
        def cell(b, h, x, w, bias):
            return joined_cell(b, h, x, b.op("tanh", w), bias)

        body = body_of(cell, h, slice_of(b, x, 0), w, bias)
        return b.multi("scan", h, x, w, bias, **scan_attrs(body, 1, 1, 4))

    graph = graph_of(build, *TYPES)
    check_pass(graph, hoist_loops)
    (scan,) = [node for node in graph.nodes if node.op == "scan"]
    assert ops_of(scan.attrs["body"]).count("tanh") == 1
