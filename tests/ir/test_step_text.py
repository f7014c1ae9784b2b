"""The text form of steps: nothing is lost in it, and errors name the line."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import (
    Dim,
    Graph,
    StepGraph,
    TensorType,
    Variable,
    collect_constants,
    parse_step,
    print_step,
    verify,
)
from cerebras_tf.ops import Builder, infer
from tests.steps import residual_step

TEXT = """step
feature 'x' = %x
variable 'a/w' = %w: float32[4] trained
variable 'rest': int64[]
update 'a/w'
result 'loss'
graph @step(%x: float32[4], %w: float32[4]) {
  %mul: float32[4] = mul(%x, %w)
  %neg: float32[4] = neg(%mul)
  return %mul, %neg
}"""


def small_step():
    """What TEXT says."""
    graph = Graph("step")
    kind = TensorType("float32", (4,))
    x, w = graph.add_input("x", kind), graph.add_input("w", kind)
    step = StepGraph(graph, {"x": x}, {"a/w": w})
    step.specs = {
        "a/w": Variable("a/w", kind, True),
        "rest": Variable("rest", TensorType("int64", ())),
    }
    b = Builder(graph)
    product = b.op("mul", x, w)
    step.updates["a/w"] = product
    step.results["loss"] = b.op("neg", product)
    return step


def roundtrip(step):
    text = print_step(step)
    again = parse_step(text, collect_constants(step.graph))
    verify(again.graph, infer)
    assert print_step(again) == text
    return again


def test_a_step_is_printed_as_its_parts_and_its_graph():
    assert print_step(small_step()) == TEXT


def test_all_parts_come_back():
    step, again = small_step(), roundtrip(small_step())
    assert again.specs == step.specs
    assert again.labels == step.labels
    assert again.features["x"] is again.graph.inputs[0]
    assert again.variables["a/w"] is again.graph.inputs[1]
    assert list(again.variables) == ["a/w"]  # 'rest' is known, but the graph does not touch it
    assert [(name, value.name) for name, value in again.updates.items()] == [("a/w", "mul")]
    assert [(name, value.name) for name, value in again.results.items()] == [("loss", "neg")]


def test_outputs_keep_their_order_whatever_they_are():
    step = small_step()
    moved = step.updates.pop("a/w")
    step.updates["a/w"] = moved  # behind the result now
    again = roundtrip(step)
    assert list(again.labels) == [("result", "loss"), ("update", "a/w")]
    assert [value.name for value in again.graph.outputs] == ["neg", "mul"]


def test_names_may_hold_quotes_and_spaces():
    step = small_step()
    step.results["it's a loss"] = step.results["loss"]
    step.results['she said "loss" = %x: y'] = step.results["loss"]
    assert list(roundtrip(step).results) == list(step.results)


def test_a_training_step_survives_with_its_gradients():
    step = residual_step(2, train=False)
    b = Builder(step.graph)
    rows, numbers = (step.graph.add_input(n, TensorType("int64", (3,))) for n in ("r", "n"))
    step.features.update(r=rows, n=numbers)
    step.results["dense"] = b.op("parameter_gradient", rows, variable="in/kernel")
    step.results["rows"] = b.multi("parameter_gradient", rows, numbers, variable="out/kernel")[0]
    again = roundtrip(step)
    assert {name: len(nodes) for name, nodes in again.gradients.items()} == {
        "in/kernel": 1,
        "out/kernel": 1,
    }
    assert len(again.gradients["out/kernel"][0].outputs) == 2
    assert list(again.updates) == list(step.updates)


def test_symbolic_sizes_survive():
    step = small_step()
    rows = Dim.symbol("R", 8, 64)
    step.features["y"] = step.graph.add_input("y", TensorType("float32", (rows, 3)))
    step.specs["table"] = Variable("table", TensorType("float32", (None, 3)))
    again = roundtrip(step)
    assert again.features["y"].shape == (rows, 3)
    assert again.specs["table"].type.shape == (None, 3)


def test_constants_are_named_by_digest_and_come_from_the_table():
    step = small_step()
    content = np.arange(64, dtype=np.float32)
    step.results["constant"] = Builder(step.graph).constant(content)
    again = roundtrip(step)
    np.testing.assert_array_equal(again.results["constant"].constant, content)
    with pytest.raises(GraphError, match="in the constants table"):
        parse_step(print_step(step))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("step\n", "stop\n", r"line 1: expected the line 'step'. Received: 'stop'"),
        ("feature 'x'", "feature x", "line 2: expected feature, variable, update or result"),
        ("variable 'a/w'", "weight 'a/w'", "line 3: expected feature, variable, update or result"),
        ("= %x\n", "= %z\n", "line 2: expected %z to be an input of the graph"),
        ("= %w:", "= %mul:", "line 3: expected %mul to be an input of the graph"),
        ("int64[]\n", "whole[]\n", "Received: whole"),
        ("result 'loss'\n", "", "a name for each of 2 outputs"),
        ("result 'loss'", "result 'loss'\nresult 'more'", "a name for each of 2 outputs"),
    ],
)
def test_errors_name_the_line_and_what_was_expected(old, new, expected):
    assert old in TEXT
    with pytest.raises(GraphError, match=expected):
        parse_step(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "step"])
def test_text_that_ends_early_is_refused(text):
    with pytest.raises(GraphError, match="expected"):
        parse_step(text)
