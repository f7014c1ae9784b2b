"""Gradients become means where the reverse pass ends, in memory of their own or of what is read."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import print_graph, verify
from cerebras_tf.ops import infer
from cerebras_tf.passes.average_gradients import average_gradients, drop_wafer_sums
from tests.graphs import check_pass, graph_of, run_plain
from tests.messages import raises
from tests.steps import StepBuilder

WAFERS = 2


def updated(s, gradient, *more):
    """Moves the variable `w` by its gradient, or by rows of it and their numbers."""
    b = s.b
    w = s.step.variables["w"]
    found = b.multi("parameter_gradient", gradient, *more, variable="w")
    if more:
        found = [b.op("scatter_add_rows", found[1], found[0], num_rows=w.shape[0])]
    s.step.updates["w"] = b.op("sub", w, b.op("mul", found[0], 0.1))


def averaged(s, **results):
    """Averages the gradients of a step; returns its nodes by op, and outputs before and after."""
    step = s.done(**results)
    random = np.random.default_rng(3)
    arrays = [
        random.integers(0, 4, value.shape).astype("int32")
        if value.dtype == "int32"
        else random.standard_normal(value.shape).astype("f")
        for value in step.graph.inputs
    ]
    before = run_plain(step.graph, arrays)
    average_gradients(step, WAFERS)
    verify(step.graph, infer)
    once = print_graph(step.graph)
    after = run_plain(step.graph, arrays)
    average_gradients(step, WAFERS)
    assert print_graph(step.graph) == once
    return {node.op: node for node in step.graph.nodes}, before, after


def computed(s):
    return s.b.op("mul", s.feature("x", 4, 3), 2.0), {}


def constant(s):
    return s.b.constant(np.ones((4, 3)), "float32"), {}


def feature(s):
    return s.feature("x", 4, 3), {}


def view(s):
    """Other bytes may be read by others: here by a result."""
    flat = s.b.op("mul", s.feature("x", 12), 2.0)
    return s.b.op("reshape", flat, shape=(4, 3)), {"flat": flat}


def read_twice(s):
    x, _ = computed(s)
    return x, {"square": s.b.op("square", x)}


def wanted(s):
    x, _ = computed(s)
    return x, {"gradient": x}


@pytest.mark.parametrize("build", [computed, constant, feature, view, read_twice, wanted])
def test_a_mean_takes_the_memory_of_what_nobody_else_reads(build):
    s = StepBuilder()
    s.variable("w", 4, 3)
    gradient, results = build(s)
    updated(s, gradient)
    nodes, before, after = averaged(s, **results)
    start = nodes["mean_start"]
    assert start.attrs == {"in_place": build is computed, "root": -1}
    assert start.inputs == [gradient]
    assert nodes["mean_wait"].inputs == start.outputs
    assert nodes["parameter_gradient"].inputs == nodes["mean_wait"].outputs
    for one, other in zip(before, after):
        np.testing.assert_array_equal(one, other)


def test_rows_of_all_wafers_stand_behind_one_another_divided_by_their_number():
    """The plain kernels let every wafer have the same rows: their mean is those of one."""
    s = StepBuilder()
    s.variable("w", 4, 3)
    rows = s.b.op("mul", s.feature("x", 5, 3), 2.0)
    updated(s, rows, s.feature("numbers", 5, dtype="int32"))
    nodes, before, after = averaged(s)
    assert [value.shape for value in nodes["parameter_gradient"].inputs] == [(10, 3), (10,)]
    assert "mean_start" not in nodes
    np.testing.assert_allclose(after[0], before[0], rtol=1e-6)


def test_what_reads_rows_is_written_anew_for_those_of_all_wafers():
    s = StepBuilder()
    s.variable("w", 4, 3)
    rows, numbers = s.feature("x", 5, 3), s.feature("numbers", 5, dtype="int32")
    found = s.b.multi("parameter_gradient", rows, numbers, variable="w")
    flat = s.b.op("mul", s.b.op("reshape", found[0], shape=(5, 3, 1)), 0.5)
    total = s.b.op("sum", s.b.op("square", flat), axes=(0, 1, 2), keepdims=False)
    nodes, before, after = averaged(s, total=total)
    assert nodes["square"].output.shape == (10, 3, 1)
    np.testing.assert_allclose(after[0], before[0] / WAFERS, rtol=1e-6)  # half of each, twice


def test_what_cannot_take_more_rows_is_named_with_a_remedy():
    s = StepBuilder()
    s.variable("w", 4, 3)
    rows, numbers = s.feature("x", 5, 3), s.feature("numbers", 5, dtype="int32")
    found = s.b.multi("parameter_gradient", rows, numbers, variable="w")
    s.b.source = "optimizer/add"
    step = s.done(y=s.b.op("add", found[0], s.feature("noise", 5, 3)))
    with raises(UnsupportedOpError, "'optimizer/add'", "1.0"):
        average_gradients(step, WAFERS)


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
