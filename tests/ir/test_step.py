"""Named parts of a step are windows on the graph's outputs."""

from __future__ import annotations

import pytest

from cerebras_tf.ir import Graph, StepGraph, TensorType, Variable
from cerebras_tf.ops import Builder

F4 = TensorType("float32", (4,))


@pytest.fixture
def step():
    """w moves to -w; the loss is e^w."""
    graph = Graph()
    b = Builder(graph)
    w = graph.add_input("w", F4)
    step = StepGraph(graph, variables={"w": w}, specs={"w": Variable("w", F4, True)})
    step.updates = {"w": b.op("neg", w)}
    step.results = {"loss": b.op("exp", w)}
    return step


def test_parts_are_read_from_the_graph_after_a_pass_replaced_values(step):
    moved, loss = step.updates["w"], step.results["loss"]
    assert step.graph.outputs == [moved, loss]
    better = Builder(step.graph).op("expm1", step.variables["w"])
    step.graph.replace({loss: better})
    assert step.updates == {"w": moved}
    assert step.results == {"loss": better}


def test_a_part_that_is_set_again_keeps_its_place(step):
    other = Builder(step.graph).op("abs", step.variables["w"])
    step.updates["w"] = other
    assert step.graph.outputs == [other, step.results["loss"]]


def test_a_part_that_moves_to_another_kind_is_one_output(step):
    moved, loss = step.updates.pop("w"), step.results["loss"]
    step.results["moved"] = moved
    assert step.graph.outputs == [loss, moved]
    assert (dict(step.updates), list(step.results)) == ({}, ["loss", "moved"])
    with pytest.raises(KeyError):
        del step.updates["w"]


def test_parts_may_be_set_from_a_window_on_themselves(step):
    loss = step.results["loss"]
    step.results = step.results
    step.updates = {}
    assert step.graph.outputs == [loss]
    assert (len(step.updates), len(step.results)) == (0, 1)


def test_gradients_are_found_by_their_variable(step):
    b = Builder(step.graph)
    rows, numbers = (step.graph.add_input(n, F4) for n in ("rows", "numbers"))
    dense = b.op("parameter_gradient", rows, variable="w")
    sparse = b.multi("parameter_gradient", rows, numbers, variable="table")
    assert [n.outputs for n in step.gradients["w"]] == [[dense]]
    assert [n.outputs for n in step.gradients["table"]] == [sparse]


def test_variable_of_finds_the_name_of_a_current_value():
    graph = Graph()
    w, x = graph.add_input("w", F4), graph.add_input("x", F4)
    step = StepGraph(graph, features={"x": x}, variables={"w": w})
    assert step.variable_of(w) == "w"
    assert step.variable_of(x) is None
