"""The op table: registration, look-up, and what errors of inference say."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import OPS, Builder, infer, lookup
from cerebras_tf.ops.registry import element_flops, register
from tests.messages import raises


def test_an_op_is_registered_once():
    with raises(GraphError, "exp"):
        register("exp", lookup("exp").infer, rows=lookup("exp").rows)


def test_an_unknown_op_is_refused_by_name():
    with raises(UnsupportedOpError, "no_such_op"):
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
    with raises(GraphError, "matmul", "%x: float32"):
        infer("matmul", [x], {})


def test_element_flops_scale_with_the_output():
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float32", (2, 3)))
    assert element_flops(4)(b.op("exp", x).node) == 24


LINEAR_ATTRS = {
    "broadcast_to": {"shape": (5, 2, 4)},
    "cast": {"dtype": "float64"},
    "mean": {"axes": (0,), "keepdims": False},
    "reshape": {"shape": (8,)},
    "rotary": {"transposed": False},
    "slice": {"starts": (0, 1), "sizes": (2, 2), "strides": (1, 1)},
    "sum": {"axes": (1,), "keepdims": True},
    "transpose": {"permutation": (1, 0)},
}


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.linear))
def test_linear_ops_are_linear_in_each_group(name):
    random, groups = np.random.default_rng(6), lookup(name).linear
    last = max(max(group) for group in groups)
    count = max(last + 1, 2 if name.startswith("div") else 1)
    held = [random.uniform(0.5, 1, (2, 4)) for _ in range(count)]
    if name == "select":
        held[0] = held[0] > 0.7
    for group in groups:
        first, second = ([random.uniform(-1, 1, (2, 4)) for _ in group] for _ in range(2))
        given = (first, second, [2 * x - 3 * y for x, y in zip(first, second)])
        one, other, both = (_with(name, held, group, operands) for operands in given)
        np.testing.assert_allclose(both, 2 * one - 3 * other, rtol=1e-10, atol=1e-12)


def _with(name, held, group, operands):
    replaced = dict(zip(group, operands))
    arrays = [replaced.get(i, array) for i, array in enumerate(held)]
    return evaluate(name, arrays, LINEAR_ATTRS.get(name, {}))[0]
