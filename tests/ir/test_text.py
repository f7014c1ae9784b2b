"""The text form: printing and parsing are inverse, and errors name the line."""

from __future__ import annotations

import math

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
    parse_graph,
    parse_step,
    print_graph,
    print_step,
    verify,
)
from cerebras_tf.ops import Builder, infer
from tests.steps import residual_step

F4 = TensorType("float32", (4,))
TEXT = """graph @step(%x: float32[4], %n: int64[]) {
  %exp: float32[4] = exp(%x) # tower/Exp
  %pair: float32[4], %pair.1: float32[?] = pair(%exp, %n) {axis=0; name='a; b, c'; axes=(1, 2)}
  return %pair.1, %x
}"""


def roundtrip(graph):
    text = print_graph(graph)
    again = parse_graph(text, collect_constants(graph))
    verify(again)
    assert print_graph(again) == text
    return again


def with_attributes(**attrs):
    graph = Graph("attributes")
    node = graph.make_node("op", [graph.add_input("x", F4)], attrs, [F4])
    graph.nodes.append(node)
    graph.outputs = [node.output]
    return roundtrip(graph).nodes[0].attrs


def test_parse_reads_what_print_writes():
    graph = parse_graph(TEXT)
    assert print_graph(graph) == TEXT
    assert [node.op for node in graph.nodes] == ["exp", "pair"]
    assert graph.nodes[0].source == "tower/Exp"
    assert graph.nodes[1].attrs == {"axis": 0, "name": "a; b, c", "axes": (1, 2)}
    assert graph.outputs[0] is graph.nodes[1].outputs[1]


@pytest.mark.parametrize(
    "value", [1, -2.5, True, None, "text", "a=b", (1, (2, 3)), [], {"k": 1}, 1e-30, b"raw"]
)
def test_literal_attributes_survive(value):
    assert with_attributes(key=value) == {"key": value}


def test_symbolic_sizes_survive_in_attributes_and_types():
    length = Dim.symbol("S", 128)
    shape = (8 * length + 1, 768)
    assert with_attributes(shape=shape, paddings=((0, length - 1),))["shape"] == shape
    graph = Graph("types")
    x = graph.add_input("x", TensorType("float32", shape))
    graph.nodes.append(graph.make_node("exp", [x], {}, [x.type]))
    graph.outputs = [graph.nodes[0].output]
    again = roundtrip(graph)
    assert [v.type for v in (*again.inputs, *again.outputs)] == [x.type, x.type]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_attributes_survive(value):
    assert with_attributes(key=value) == {"key": value}


def test_a_nan_attribute_survives():
    assert math.isnan(with_attributes(key=math.nan)["key"])


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5, np.float32),
        np.array([1, 2, 3], np.int64),
        np.array([[True], [False]]),
        np.zeros((0, 3), np.float32),
        np.array([np.inf, -np.inf, 1.0], np.float32),
        np.arange(64, dtype=np.float32).reshape(8, 8),
    ],
)
def test_array_attributes_survive(array):
    found = with_attributes(value=array)["value"]
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_nan_elements_survive():
    found = with_attributes(value=np.array([np.nan, 1.0], np.float32))["value"]
    np.testing.assert_array_equal(found, np.array([np.nan, 1.0], np.float32))


def test_small_floats_keep_every_bit():
    array = np.array([0.1, 1 / 3, 1e-38], np.float32)
    found = with_attributes(value=array)["value"]
    assert found.tobytes() == array.tobytes()


def conditional():
    """A graph whose node holds two graphs, one of them with a constant of its own."""
    branches = {}
    for name, scale in (("then", 2.0), ("orelse", 3.0)):
        branch = Graph(name)
        value = branch.add_input("v", F4)
        array = np.full(40, scale, np.float32)
        kind = TensorType("float32", (40,))
        constant = branch.make_node("constant", [], {"value": array, "dtype": "float32"}, [kind])
        mul = branch.make_node("use", [value, constant.output], {}, [F4])
        branch.nodes += [constant, mul]
        branch.outputs = [mul.output]
        branches[name] = branch
    graph = Graph("outer")
    operands = [graph.add_input("p", TensorType("bool", ())), graph.add_input("x", F4)]
    node = graph.make_node("cond", operands, branches, [F4], source="cond/If")
    graph.nodes.append(node)
    graph.outputs = [node.output]
    return graph


def test_graphs_in_attributes_survive_with_their_constants():
    again = roundtrip(conditional())
    inner = again.nodes[0].subgraphs
    assert sorted(inner) == ["orelse", "then"]
    assert inner["orelse"].nodes[0].attrs["value"][0] == 3.0
    assert again.nodes[0].source == "cond/If"


def test_str_of_a_graph_is_its_text():
    graph = conditional()
    assert str(graph) == print_graph(graph)


def test_equal_constants_have_one_digest_and_others_another():
    first, second = conditional(), conditional()
    assert list(collect_constants(first)) == list(collect_constants(second))
    assert len(collect_constants(first)) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "at least one graph"),
        ("%a: float32[] = exp(%b)", "line 1: expected a line 'graph @name"),
        ("graph @g(%x: float32[4]) {\n  nonsense\n}", "line 2: expected '%out"),
        ("graph @g(%x: float32[4]) {\n  %y: float32[4] = exp(%z)\n}", "line 2: expected %z"),
        ("graph @g(%x: float32[4]) {\n  return %y\n}", "line 2: expected %y"),
        ("graph @g(%x: nofloat[4]) {\n}", "Received: nofloat"),
    ],
)
def test_parse_errors_name_the_line_and_what_was_expected(text, expected):
    with pytest.raises(GraphError, match=expected):
        parse_graph(text)


def test_a_large_constant_needs_the_table():
    text = print_graph(conditional())
    with pytest.raises(GraphError):
        parse_graph(text)


@pytest.mark.parametrize(
    ("layer", "direction", "shown"),
    [
        (3, "backward", " @3.backward"),
        (0, "forward", " @0.forward"),
        (-1, "update", " @-1.update"),
        (-1, "forward", ""),
    ],
)
@pytest.mark.parametrize("source", ["", "tower/Exp"])
@pytest.mark.parametrize("attrs", [{}, {"note": "@1.update"}])
def test_layers_and_directions_survive_beside_all_else(layer, direction, shown, source, attrs):
    graph = Graph("placed")
    node = graph.make_node("op", [graph.add_input("x", F4)], attrs, [F4], source)
    node.layer, node.direction = layer, direction
    graph.nodes.append(node)
    graph.outputs = [node.output]
    line = print_graph(graph).splitlines()[1]
    assert line.endswith(shown + (f" # {source}" if source else ""))
    (again,) = roundtrip(graph).nodes
    assert (again.layer, again.direction, again.source) == (layer, direction, source)
    assert again.attrs == attrs


STEP_TEXT = """step
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
    """What STEP_TEXT says."""
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


def step_roundtrip(step):
    text = print_step(step)
    again = parse_step(text, collect_constants(step.graph))
    verify(again.graph, infer)
    assert print_step(again) == text
    return again


def test_a_step_is_printed_as_its_parts_and_its_graph():
    assert print_step(small_step()) == STEP_TEXT


def test_all_parts_come_back():
    step, again = small_step(), step_roundtrip(small_step())
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
    again = step_roundtrip(step)
    assert list(again.labels) == [("result", "loss"), ("update", "a/w")]
    assert [value.name for value in again.graph.outputs] == ["neg", "mul"]


def test_names_may_hold_quotes_and_spaces():
    step = small_step()
    step.results["it's a loss"] = step.results["loss"]
    step.results['she said "loss" = %x: y'] = step.results["loss"]
    assert list(step_roundtrip(step).results) == list(step.results)


def test_a_training_step_survives_with_its_gradients():
    step = residual_step(2, train=False)
    b = Builder(step.graph)
    rows, numbers = (step.graph.add_input(n, TensorType("int64", (3,))) for n in ("r", "n"))
    step.features.update(r=rows, n=numbers)
    step.results["dense"] = b.op("parameter_gradient", rows, variable="in/kernel")
    step.results["rows"] = b.multi("parameter_gradient", rows, numbers, variable="out/kernel")[0]
    again = step_roundtrip(step)
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
    again = step_roundtrip(step)
    assert again.features["y"].shape == (rows, 3)
    assert again.specs["table"].type.shape == (None, 3)


def test_constants_are_named_by_digest_and_come_from_the_table():
    step = small_step()
    content = np.arange(64, dtype=np.float32)
    step.results["constant"] = Builder(step.graph).constant(content)
    again = step_roundtrip(step)
    np.testing.assert_array_equal(again.results["constant"].constant, content)
    with pytest.raises(GraphError):
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
    assert old in STEP_TEXT
    with pytest.raises(GraphError, match=expected):
        parse_step(STEP_TEXT.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "step"])
def test_text_that_ends_early_is_refused(text):
    with pytest.raises(GraphError, match="expected"):
        parse_step(text)
