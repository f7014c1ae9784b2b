"""Symbols replaced by numbers in attributes and graphs."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Dim, Graph, TensorType, bind_graph, substitute, symbols_in, verify
from tests.messages import raises

S = Dim.symbol("S", 128)


def _graph() -> Graph:
    graph = Graph("body")
    x = graph.add_input("x", TensorType("float32", (S, 4)))
    node = graph.make_node(
        "reshape", [x], {"shape": (4 * S,)}, [TensorType("float32", (4 * S,))], "source"
    )
    node.layer, node.direction = 3, "backward"
    graph.nodes.append(node)
    graph.outputs = [node.output, x]
    return graph


def test_substitute_reaches_nested_attributes():
    attrs = {"shape": (8 * S, 768), "paddings": ((0, S - 1), (2, 0)), "axes": [S], "axis": 1}
    bound = substitute(attrs, {"S": 5})
    assert bound == {"shape": (40, 768), "paddings": ((0, 4), (2, 0)), "axes": [5], "axis": 1}
    assert substitute(TensorType("int32", (S, None)), {"S": 5}) == TensorType("int32", (5, None))


def test_substitute_returns_what_holds_no_symbol():
    graph = Graph()
    for value in ((1, 2), {"a": [None]}, "text", graph, TensorType("float32", (2,))):
        assert substitute(value, {}) is value


def test_substitute_needs_a_size_for_every_symbol():
    with raises(GraphError, "S"):
        substitute({"shape": (S,)}, {"T": 3})


def test_bind_graph_copies_with_types_and_attributes_of_the_sizes():
    graph = _graph()
    bound = substitute({"body": graph}, {"S": 5})["body"]
    verify(bound)
    assert [value.type.shape for value in bound.outputs] == [(20,), (5, 4)]
    (node,) = bound.nodes
    assert (node.attrs, node.source) == ({"shape": (20,)}, "source")
    assert (node.layer, node.direction) == (3, "backward")
    assert graph.outputs[0].shape == (4 * S,)


def test_bind_graph_refuses_negative_dimensions():
    graph = Graph()
    graph.outputs = [graph.add_input("x", TensorType("float32", (S - 2,)))]
    with pytest.raises(GraphError):
        bind_graph(graph, {"S": 1})


def test_symbols_in_finds_those_of_types_attributes_and_graphs():
    (symbol,) = S.symbols
    assert symbols_in(_graph()) == {symbol}
    assert symbols_in({"then": _graph(), "axis": 1}) == {symbol}
    assert symbols_in((1, "a", None)) == frozenset()
