"""The verifier finds each broken invariant and shows the lines around it."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType, Value, verify
from cerebras_tf.ops import Builder, infer
from tests.graphs import graph_of
from tests.messages import raises

F4, F5 = TensorType("float32", (4,)), TensorType("float32", (5,))


def two_nodes():
    graph = Graph("g")
    b = Builder(graph)
    graph.outputs = [b.op("neg", b.op("exp", graph.add_input("x", F4)))]
    return graph


def invalid_inner(graph):
    inner = Graph("inner")
    inner.outputs = [Value("ghost", F4)]
    graph.nodes[0].attrs["then"] = inner


def another_output(graph):
    graph.nodes[1].outputs.append(Value("more", F4, graph.nodes[1], 1))


def rename(graph):
    graph.nodes[1].output.name = "exp"


# Fault -> what makes it, and what the error names.
FAULTS = {
    "order": (lambda g: g.nodes.reverse(), ["%exp", "  > %neg = neg(%exp)"]),
    "a foreign operand": (lambda g: setattr(g.nodes[0], "inputs", [Value("x", F4)]), ["%x", F4]),
    "a node twice": (lambda g: g.nodes.append(g.nodes[0]), ["%exp"]),
    "a name twice": (rename, ["%exp"]),
    "an input twice": (lambda g: g.inputs.append(Value("x", F4)), ["input", "unique"]),
    "a wrong index": (lambda g: setattr(g.nodes[0].output, "index", 1), ["%exp"]),
    "an unknown output": (lambda g: g.outputs.append(Value("ghost", F4)), ["%ghost"]),
    "a wrong type": (lambda g: setattr(g.nodes[1].output, "type", F5), ["%neg", F4]),
    "another output": (another_output, ["1 outputs"]),
    "a region": (invalid_inner, ["graph inner", "%ghost"]),
}


@pytest.mark.parametrize(("change", "facts"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_are_found_and_shown(change, facts):
    graph = two_nodes()
    verify(graph, infer)
    change(graph)
    with raises(GraphError, *facts):
        verify(graph, infer)


def test_types_are_not_checked_without_inference():
    graph = two_nodes()
    graph.nodes[1].output.type = F5
    verify(graph)


def test_only_changed_nodes_are_inferred_again():
    graph = graph_of(lambda b, x: b.op("tanh", b.op("exp", x)), "float32[4]")
    asked: list[str] = []

    def counting(op, inputs, attrs):
        asked.append(op)
        return infer(op, inputs, attrs)

    inferred: dict = {}
    verify(graph, counting, inferred)
    verify(graph, counting, inferred)
    assert asked == ["exp", "tanh"]
    graph.nodes[-1].outputs[0].type = F5
    with pytest.raises(GraphError):
        verify(graph, counting, inferred)
    assert asked == ["exp", "tanh", "tanh"]


def test_changes_inside_regions_are_found():
    def build(b, p, x):
        then, orelse = (graph_of(lambda b, x: b.op("exp", x), "float32[4]") for _ in range(2))
        return b.op("cond", p, x, then=then, orelse=orelse)

    graph = graph_of(build, "bool[]", "float32[4]")
    inferred: dict = {}
    verify(graph, infer, inferred)
    graph.nodes[0].attrs["then"].nodes[0].outputs[0].type = F5
    with pytest.raises(GraphError):
        verify(graph, infer, inferred)
