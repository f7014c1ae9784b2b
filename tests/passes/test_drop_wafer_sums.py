"""Sums over wafers go where there is one wafer, and stay where there are several."""

from __future__ import annotations

import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.passes.drop_wafer_sums import drop_wafer_sums
from tests.graphs import check_pass, graph_of
from tests.steps import StepBuilder


def shared_mean(b, costs):
    """The sum of costs by their count, both of all wafers."""
    total = b.op("wafer_sum", b.op("sum", costs, axes=(0,), keepdims=False))
    count = b.op(
        "sum", b.op("cast", b.op("greater", costs, 0.0), dtype="float32"), axes=(0,), keepdims=False
    )
    return b.op("div", total, b.op("wafer_sum", b.op("add", count, 1.0)))


def test_of_one_wafer_a_sum_is_what_it_sums():
    ops = check_pass(graph_of(lambda b, x: shared_mean(b, x), "float32[6]"), drop_wafer_sums)
    assert "wafer_sum" not in ops and ops[-1] == "div"


def test_a_sum_of_a_sum_and_one_that_is_wanted_go_too():
    def build(b, x):
        y = b.op("wafer_sum", b.op("wafer_sum", x))
        return b.op("neg", y), y, b.op("wafer_sum", x)

    graph = graph_of(build, "float32[3]")
    assert check_pass(graph, drop_wafer_sums) == ["neg"]
    assert graph.outputs[1:] == graph.inputs * 2


@pytest.mark.parametrize("wafers", [1, 2])
def test_with_several_wafers_it_stays(wafers):
    s = StepBuilder()
    costs = s.b.op("mul", s.feature("x", 6), s.variable("w", 6))
    loss = shared_mean(s.b, costs)
    s.momentum(loss, ["w"], clip=False)
    program = compile_step(s.done(loss=loss), Options(wafers=wafers))
    assert any(item.op == "wafer_sum" for item in program.instructions()) is (wafers == 2)
