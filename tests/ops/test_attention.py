"""The attention op: types, refusals, cost, and its gradient against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.ops import Builder, lookup
from tests.messages import raises
from tests.ops.differences import check_vjp

# Letters: B batch, S query length, T key length, A heads, D head width.
QUERY, KEY = (2, 5, 3, 4), (2, 7, 3, 4)


@pytest.mark.parametrize("heads", [3, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_gradient_is_the_derivative(causal, heads):
    random = np.random.default_rng(2)
    shapes = QUERY, *((*QUERY[:2], heads, QUERY[3]),) * 2
    arrays = [random.standard_normal(shape) for shape in shapes]
    check_vjp("attention", arrays, scale=0.5, causal=causal)


DROPOUT = {"rate": 0.3, "kept_scale": 1.4}
DRAWN_FROM = (np.array(1), np.array([7, 2]))


@pytest.mark.parametrize("causal", [False, True])
def test_gradient_with_dropout_is_the_derivative(causal):
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(QUERY) for _ in range(3)]
    check_vjp("attention", [*arrays, *DRAWN_FROM], scale=0.5, causal=causal, **DROPOUT)


@pytest.mark.parametrize(
    "step, attrs",
    [
        ("float32", DROPOUT),
        ("int64", {"rate": 0.3}),
        ("int64", {**DROPOUT, "rate": 1.0}),
        (None, DROPOUT),
    ],
)
def test_dropout_without_its_step_or_an_attribute_is_refused(step, attrs):
    b, values = _values(QUERY, KEY, KEY)
    others = [b.graph.add_input("seeds", TensorType("int64", (2,)))]
    if step is not None:
        others.insert(0, b.graph.add_input("step", TensorType(step, ())))
    with raises(GraphError, "attention", "dropout"):
        b.multi("attention", *values, *others, scale=0.5, causal=False, **attrs)


@pytest.mark.parametrize("type", [TensorType("int64", ()), TensorType("float64", (2,)), None])
def test_dropout_without_two_seeds_is_refused(type):
    b, values = _values(QUERY, KEY, KEY)
    others = [b.graph.add_input("step", TensorType("int64", ()))]
    if type is not None:
        others.append(b.graph.add_input("seeds", type))
    with raises(GraphError, "attention", "dropout"):
        b.multi("attention", *values, *others, scale=0.5, causal=False, **DROPOUT)


def _values(*shapes):
    b = Builder(Graph())
    return b, [b.graph.add_input("x", TensorType("float32", shape)) for shape in shapes]


def test_outputs_are_typed_by_the_query():
    b, values = _values(QUERY, KEY, KEY, (2, 1, 1, 7))
    out, lse = b.multi("attention", *values, scale=0.5, causal=False)
    assert out.shape == QUERY
    assert lse.shape == (2, 3, 5)


def test_bias_gets_no_gradient():
    b, values = _values(QUERY, KEY, KEY, (1, 3, 5, 7))
    out, _ = b.multi("attention", *values, scale=0.5, causal=False)
    grads = lookup("attention").vjp(b, out.node, [out, None])
    assert [dx and dx.shape for dx in grads] == [QUERY, KEY, KEY, None]


@pytest.mark.parametrize(
    "shapes",
    [
        (QUERY, KEY, QUERY),
        (QUERY, KEY, (2, 7, 3, 8)),
        ((3, *QUERY[1:]), KEY, KEY),
        (QUERY[1:], KEY, KEY),
        (QUERY, KEY, KEY, (2, 3, 5, 6)),
        (QUERY, KEY, KEY, (4, 2, 3, 5, 7)),
        (QUERY, (2, 1, 3, 4), (2, 1, 3, 4), (2, 3, 5, 7)),
    ],
)
def test_operands_that_do_not_fit_are_refused(shapes):
    b, values = _values(*shapes)
    with pytest.raises(GraphError):
        b.multi("attention", *values, scale=0.5, causal=False)


def test_a_causal_mask_halves_the_cost():
    b, values = _values(QUERY, QUERY, QUERY)
    costs = [
        lookup("attention").flops(b.multi("attention", *values, scale=1.0, causal=c)[0].node)
        for c in (False, True)
    ]
    assert costs == [2 * 2 * 2 * 3 * 5 * 5 * 4, 2 * 2 * 3 * 5 * 5 * 4]


def test_dropout_costs_as_much_as_a_random_number_and_two_operations_a_score():
    b, values = _values(QUERY, KEY, KEY)
    step = b.graph.add_input("step", TensorType("int64", ()))
    without = b.multi("attention", *values, scale=1.0, causal=False)[0].node
    drawn_from = (step, b.constant(np.array([7, 2])))
    dropped = b.multi("attention", *values, *drawn_from, scale=1.0, causal=False, **DROPOUT)[0].node
    flops = lookup("attention").flops
    assert flops(dropped) - flops(without) == 22 * 2 * 3 * 5 * 7
