"""The builder infers types, folds constants and records where nodes come from."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Graph, TensorType, verify
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer
from tests.messages import raises

F4 = TensorType("float32", (4,))


@pytest.fixture
def b():
    return Builder(Graph(), evaluate)


def test_op_infers_the_type_and_appends_a_node(b):
    x = b.graph.add_input("x", TensorType("float32", (3, 1)))
    y = b.graph.add_input("y", F4)
    z = b.op("add", x, y)
    assert z.type == TensorType("float32", (3, 4))
    assert [node.op for node in b.graph.nodes] == ["add"]
    verify(b.graph, infer)


def test_numbers_become_constants_of_the_first_values_dtype(b):
    x = b.graph.add_input("x", TensorType("float16", (4,)))
    node = b.op("mul", x, 2.0).node
    assert node.inputs[1].dtype == "float16"
    assert node.inputs[1].constant == np.float16(2.0)


def test_arrays_keep_their_own_dtype(b):
    x = b.graph.add_input("x", TensorType("int64", (3,)))
    node = b.op("add", x, np.array([1, 2, 3])).node
    assert node.inputs[1].dtype == "int64"


def test_an_op_of_constants_is_folded(b):
    value = b.op("mul", b.op("add", b.constant(2.0, "float32"), 3.0), 4.0)
    assert value.constant == np.float32(20.0)
    assert value.constant.dtype == np.float32
    b.graph.outputs = [value]
    b.graph.prune()
    assert [node.op for node in b.graph.nodes] == ["constant"]


def test_folding_keeps_the_ir_dtype_that_numpy_lacks(b):
    value = b.op("add", b.constant([1.0, 2.0], "bfloat16"), 1.0)
    assert value.dtype == "bfloat16"
    assert value.constant.dtype == np.float32


def test_every_output_of_a_folded_op_is_a_constant(b):
    logits = b.constant(np.zeros((2, 4)), "float32")
    outputs = b.multi("sparse_softmax_xent", logits, b.constant([0, 1], "int32"))
    for value in outputs:
        np.testing.assert_allclose(value.constant, np.log(4.0), rtol=1e-6)


def test_large_results_stay_nodes(b):
    one = b.constant(np.ones((200, 1)), "float32")
    value = b.op("add", one, np.ones((1, 200), np.float32))
    assert value.constant is None
    assert value.node.op == "add"


def test_without_an_evaluator_nothing_is_folded():
    b = Builder(Graph())
    assert b.op("add", b.constant(1.0, "float32"), 2.0).constant is None


def test_an_op_of_one_unknown_operand_stays_a_node(b):
    x = b.graph.add_input("x", F4)
    assert b.op("add", x, 1.0).constant is None


def test_nodes_record_source_direction_and_layer(b):
    b.source, b.direction, b.layer = "tower/Exp", "backward", 3
    node = b.op("exp", b.graph.add_input("x", F4)).node
    assert (node.source, node.direction, node.layer) == ("tower/Exp", "backward", 3)


def test_op_refuses_several_outputs(b):
    x = b.graph.add_input("x", TensorType("float32", (2, 4)))
    gamma = b.graph.add_input("gamma", F4)
    with raises(GraphError, "layer_norm", 3):
        b.op("layer_norm", x, gamma, gamma, epsilon=1e-5)


def test_an_unknown_op_is_named(b):
    with raises(UnsupportedOpError, "frobnicate"):
        b.op("frobnicate", b.graph.add_input("x", F4))


def test_operands_of_different_dtypes_are_refused(b):
    x = b.graph.add_input("x", F4)
    with pytest.raises(GraphError):
        b.op("add", x, np.array([1, 2, 3, 4]))


def test_wrong_operands_are_named_with_the_op(b):
    with raises(GraphError, "cast"):
        b.op("cast", b.graph.add_input("x", F4))


def test_what_was_replaced_is_replaced_in_operands(b):
    x, y = (b.graph.add_input(name, F4) for name in "xy")
    b.replaced[x] = y
    assert b.op("add", x, x).node.inputs == [y, y]
