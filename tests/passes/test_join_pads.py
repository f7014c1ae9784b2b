"""Sums of padded parts become concatenations."""

from __future__ import annotations

import pytest

from cerebras_tf.passes.join_pads import join_pads
from tests.graphs import check_pass, graph_of


def padded(b, x, before, after):
    return b.op("pad", x, paddings=((0, 0), (before, after)), value=0)


def summed(*places):
    """The sum of parts [2, 3] padded to places of [2, 9]."""

    def build(b, *xs):
        total = None
        for x, at in zip(xs, places):
            part = padded(b, x, at, 6 - at)
            total = part if total is None else b.op("add", total, part)
        return [b.op("exp", total)]

    return graph_of(build, *["float32[2,3]"] * len(places))


@pytest.mark.parametrize("places", [(0, 3, 6), (6, 0, 3)])
def test_parts_that_fill_the_axis_are_joined(places):
    assert check_pass(summed(*places), join_pads) == ["concat", "exp"]


@pytest.mark.parametrize("places", [(0, 3), (0, 3, 5), (0, 3, 3)])
def test_parts_that_overlap_or_leave_a_gap_are_added(places):
    assert "add" in check_pass(summed(*places), join_pads)


def test_a_sum_that_something_else_reads_is_kept_apart():
    def build(b, x, y, z):
        first = b.op("add", padded(b, x, 0, 6), padded(b, y, 3, 3))
        return [b.op("add", first, padded(b, z, 6, 0)), first]

    ops = check_pass(graph_of(build, *["float32[2,3]"] * 3), join_pads)
    assert ops.count("add") == 2
