"""The graph as data: names, uses, replacing, pruning, sorting."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType
from tests.messages import raises

F4 = TensorType("float32", (4,))


def add(graph, op, *inputs, outputs=1, **attrs):
    node = graph.make_node(op, inputs, attrs, [F4] * outputs)
    graph.nodes.append(node)
    return node


@pytest.fixture
def chain():
    """x -> exp -> neg, with one node beside the way."""
    graph = Graph("chain")
    x = graph.add_input("x", F4)
    exp = add(graph, "exp", x)
    aside = add(graph, "tanh", exp.output)
    neg = add(graph, "neg", exp.output)
    graph.outputs = [neg.output]
    return graph, x, exp, aside, neg


def test_names_are_unique_within_a_graph():
    graph = Graph()
    names = [graph.add_input("x", F4).name for _ in range(3)]
    names += [graph.add_input("x.1", F4).name, graph.add_input("x", F4).name]
    assert len(set(names)) == 5
    assert names[0] == "x"


def test_output_refuses_a_node_with_several():
    graph = Graph()
    node = add(graph, "pair", graph.add_input("x", F4), outputs=2)
    with raises(GraphError, 2):
        _ = node.output


def test_constant_gives_the_array_of_constant_nodes_only(chain):
    graph, x, exp, _, _ = chain
    array = np.arange(4, dtype=np.float32)
    value = add(graph, "constant", value=array, dtype="float32").output
    assert value.constant is array
    assert x.constant is None
    assert exp.output.constant is None


def test_users_lists_a_node_once_an_operand(chain):
    graph, _, exp, aside, neg = chain
    double = add(graph, "add", exp.output, exp.output)
    assert graph.users()[exp.output] == [aside, neg, double, double]


def test_replace_follows_chains_and_reaches_the_outputs(chain):
    graph, x, exp, aside, neg = chain
    graph.replace({neg.output: exp.output, exp.output: x})
    assert graph.outputs == [x]
    assert aside.inputs == [x]
    assert exp.inputs == [x]


def test_prune_drops_what_no_output_needs_and_says_so(chain):
    graph, _, exp, aside, neg = chain
    assert graph.prune() is True
    assert graph.nodes == [exp, neg]
    assert graph.prune() is False
    assert aside not in graph.nodes


def test_prune_keeps_a_node_of_which_one_output_is_needed():
    graph = Graph()
    node = add(graph, "pair", graph.add_input("x", F4), outputs=2)
    graph.outputs = [node.outputs[1]]
    assert graph.prune() is False
    assert graph.nodes == [node]


def test_sort_puts_makers_first_and_keeps_the_order_otherwise(chain):
    graph, _, exp, aside, neg = chain
    graph.nodes = [aside, exp, neg]
    graph.sort()
    assert graph.nodes == [exp, aside, neg]
    graph.sort()
    assert graph.nodes == [exp, aside, neg]


def test_sort_survives_a_very_long_chain_of_nodes():
    graph = Graph()
    value = graph.add_input("x", F4)
    for _ in range(5000):
        value = add(graph, "neg", value).output
    ordered = list(graph.nodes)
    graph.nodes.reverse()
    graph.sort()
    assert graph.nodes == ordered


def test_sort_refuses_a_cycle(chain):
    graph, _, exp, _, neg = chain
    exp.inputs = [neg.output]
    with raises(GraphError, "chain"):
        graph.sort()
