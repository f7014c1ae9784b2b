"""Named parts of a step follow the graph's outputs."""

from __future__ import annotations

from cerebras_tf.ir import Graph, StepGraph, TensorType, Variable
from cerebras_tf.ops import Builder

F4 = TensorType("float32", (4,))


def test_parts_are_read_back_after_a_pass_replaced_values():
    graph = Graph()
    b = Builder(graph)
    w = graph.add_input("w", F4)
    moved, loss = b.op("neg", w), b.op("exp", w)
    step = StepGraph(graph, variables={"w": w}, specs={"w": Variable("w", F4, True)})
    step.updates, step.results = {"w": moved}, {"loss": loss}
    step.set_outputs()
    assert graph.outputs == [moved, loss]
    better = b.op("expm1", w)
    graph.replace({loss: better})
    step.reread_outputs()
    assert step.updates == {"w": moved}
    assert step.results == {"loss": better}


def test_variable_of_finds_the_name_of_a_current_value():
    graph = Graph()
    w, x = graph.add_input("w", F4), graph.add_input("x", F4)
    step = StepGraph(graph, features={"x": x}, variables={"w": w})
    assert step.variable_of(w) == "w"
    assert step.variable_of(x) is None
