"""The op table: registration, look-up, and what errors of inference say."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import OPS, Builder, infer, lookup
from cerebras_tf.ops.registry import element_flops, register


def test_an_op_is_registered_once():
    with pytest.raises(GraphError, match="names must differ. Received: exp twice"):
        register("exp", lookup("exp").infer, rows=lookup("exp").rows)


def test_an_unknown_op_is_refused_by_name():
    with pytest.raises(UnsupportedOpError, match="op no_such_op: must be in the op table"):
        lookup("no_such_op")


def test_the_family_is_the_file_of_the_rules():
    families = {name: OPS[name].family for name in ("exp", "matmul", "softmax", "attention")}
    assert families == {
        "exp": "elementwise",
        "matmul": "matmul",
        "softmax": "normalization",
        "attention": "attention",
    }


def test_a_rule_that_stumbles_gives_an_error_with_op_and_operands():
    x = Graph().add_input("x", TensorType("float32", (2, 3)))
    with pytest.raises(GraphError, match=r"op matmul: types could not be inferred.*%x: float32"):
        infer("matmul", [x], {})


def test_element_flops_scale_with_the_output():
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float32", (2, 3)))
    assert element_flops(4)(b.op("exp", x).node) == 24
