"""The text form: printing and parsing are inverse, and errors name the line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import (
    Dim,
    Graph,
    TensorType,
    collect_constants,
    parse_graph,
    print_graph,
    verify,
)

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
    with pytest.raises(GraphError, match="in the constants table"):
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
