"""sum_to is the adjoint of broadcasting."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import Builder
from cerebras_tf.ops.gradients import sum_to
from tests.graphs import run_plain


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (1, 4), (3, 1), (4,), (1,), (), (2, 1, 1)])
def test_sum_to_is_the_adjoint_of_broadcasting(shape):
    """<dy, broadcast(x)> = <sum_to(dy), x>"""
    b = Builder(Graph())
    like = b.graph.add_input("x", TensorType("float64", shape))
    dy = b.graph.add_input("dy", TensorType("float64", (2, 3, 4)))
    b.graph.outputs = [sum_to(b, dy, like)]
    random = np.random.default_rng(0)
    x, cotangent = random.standard_normal(shape), random.standard_normal((2, 3, 4))
    (found,) = run_plain(b.graph, [x, cotangent])
    assert found.shape == shape
    np.testing.assert_allclose(np.sum(found * x), np.sum(cotangent * x), rtol=1e-12)


def test_nothing_is_emitted_where_the_shapes_are_equal():
    b = Builder(Graph())
    x = b.graph.add_input("x", TensorType("float32", (2, 3)))
    assert sum_to(b, x, x) is x
    assert b.graph.nodes == []
