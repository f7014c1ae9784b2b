"""Infix arithmetic on values gives what NumPy gives, and numbers take the values' dtype."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import Graph
from cerebras_tf.ops import Builder
from cerebras_tf.ops.expression import Expression
from tests.graphs import graph_of, run_plain

X = np.array([-1.5, 0.0, 0.25, 4.0], np.float32)
Y = np.array([2.0, -3.0, 0.5, 1.25], np.float32)
# (formula of expressions, the same of arrays); where both are written alike, once.
FORMULAS = [
    lambda x, y: x + y * 2.0 - y / 4.0,
    lambda x, y: 1.0 + (2.0 - x) * (3.0 * y) + 1.0 / y,
    lambda x, y: -(abs(x) ** 2.0),
]
METHODS = [
    (lambda x, y: x.maximum(y), np.maximum),
    (lambda x, y: y.square().sqrt() + y.square().rsqrt(), lambda x, y: abs(y) + 1 / abs(y)),
    (lambda x, y: x.exp() * x.sign(), lambda x, y: np.exp(x) * np.sign(x)),
    (lambda x, y: x.relu() * y.sum(), lambda x, y: np.maximum(x, 0) * np.sum(y)),
    (lambda x, y: (x > 0.0).select(y, 1.0), lambda x, y: np.where(x > 0, y, np.float32(1))),
]


def computed(formula):
    def build(b, *inputs):
        return formula(*(Expression(b, value) for value in inputs)).value

    return run_plain(graph_of(build, "float32[4]", "float32[4]"), [X, Y])[0]


@pytest.mark.parametrize(("ours", "numpys"), [*((f, f) for f in FORMULAS), *METHODS])
def test_a_formula_gives_what_numpy_gives(ours, numpys):
    np.testing.assert_allclose(computed(ours), numpys(X, Y), rtol=1e-6)


def test_numbers_on_either_side_and_in_select_take_the_dtype_of_the_value():
    def build(b, half):
        x = Expression(b, half)
        return ((x > 1.0).select(1.0 - x, 0.5) * 2.0).value

    assert graph_of(build, "float16[4]").outputs[0].dtype == "float16"


def test_cast_like_takes_the_dtype_of_another():
    b = Builder(Graph())
    step, x = (Expression(b, b.constant(1, dtype)) for dtype in ("int64", "float32"))
    assert step.cast_like(x).value.dtype == "float32"
