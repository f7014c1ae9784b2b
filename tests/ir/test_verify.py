"""The verifier finds each broken invariant and shows the lines around it."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType, Value, parse_type, verify
from cerebras_tf.ops import Builder, infer
from tests.graphs import graph_of

F4 = TensorType("float32", (4,))


@pytest.fixture
def graph():
    graph = Graph("g")
    b = Builder(graph)
    x = graph.add_input("x", F4)
    graph.outputs = [b.op("neg", b.op("exp", x))]
    return graph


def test_verify_accepts_a_well_formed_graph(graph):
    verify(graph, infer)


def test_an_operand_must_be_made_earlier(graph):
    graph.nodes.reverse()
    with pytest.raises(GraphError, match=r"must be made by an earlier node") as error:
        verify(graph)
    assert "  > %neg = neg(%exp)" in str(error.value)


def test_an_operand_of_another_graph_is_refused(graph):
    graph.nodes[0].inputs = [Value("x", F4)]
    with pytest.raises(GraphError, match=r"operand %x: float32\[4\] must be made"):
        verify(graph)


def test_a_value_must_be_made_once(graph):
    graph.nodes.append(graph.nodes[0])
    with pytest.raises(GraphError, match="must be made once"):
        verify(graph)


def test_two_values_must_not_share_a_name(graph):
    graph.nodes[1].output.name = "exp"
    with pytest.raises(GraphError, match="must be made once"):
        verify(graph)


def test_input_names_must_be_unique(graph):
    graph.inputs.append(Value("x", F4))
    with pytest.raises(GraphError, match="input names must be unique"):
        verify(graph)


def test_an_output_must_point_back_at_its_node(graph):
    graph.nodes[0].output.index = 1
    with pytest.raises(GraphError, match="must point back at its node"):
        verify(graph)


def test_graph_outputs_must_be_made(graph):
    graph.outputs.append(Value("ghost", F4))
    with pytest.raises(GraphError, match="graph output %ghost"):
        verify(graph)


def test_types_must_be_the_inferred_ones(graph):
    graph.nodes[1].output.type = TensorType("float32", (5,))
    verify(graph)
    with pytest.raises(GraphError, match=r"must have the inferred type float32\[4\]"):
        verify(graph, infer)


def test_the_number_of_outputs_must_be_the_inferred_one(graph):
    node = graph.nodes[1]
    node.outputs.append(Value("more", F4, node, 1))
    with pytest.raises(GraphError, match="1 outputs expected"):
        verify(graph, infer)


def test_graphs_in_attributes_are_verified(graph):
    inner = Graph("inner")
    inner.outputs = [Value("ghost", F4)]
    graph.nodes[0].attrs["then"] = inner
    with pytest.raises(GraphError, match="graph inner: graph output %ghost"):
        verify(graph)


def test_nodes_that_changed_since_they_were_found_right_are_inferred_again():
    graph = graph_of(lambda b, x: b.op("tanh", b.op("exp", x)), "float32[4]")
    asked: list[str] = []

    def counting(op, inputs, attrs):
        asked.append(op)
        return infer(op, inputs, attrs)

    inferred: dict = {}
    verify(graph, counting, inferred)
    verify(graph, counting, inferred)
    assert asked == ["exp", "tanh"]
    graph.nodes[-1].outputs[0].type = parse_type("float32[5]")
    with pytest.raises(GraphError, match="must have the inferred type"):
        verify(graph, counting, inferred)
    assert asked == ["exp", "tanh", "tanh"]


def test_what_changes_inside_a_graph_of_an_attribute_is_seen_again():
    def build(b, p, x):
        branches = {}
        for key in ("then", "orelse"):
            branch = Graph(key)
            value = branch.add_input("x", parse_type("float32[4]"))
            branch.outputs = [Builder(branch).op("exp", value)]
            branches[key] = branch
        return b.op("cond", p, x, **branches)

    graph = graph_of(build, "bool[]", "float32[4]")
    inferred: dict = {}
    verify(graph, infer, inferred)
    graph.nodes[0].attrs["then"].nodes[0].outputs[0].type = parse_type("float32[5]")
    with pytest.raises(GraphError, match="must have the inferred type"):
        verify(graph, infer, inferred)
