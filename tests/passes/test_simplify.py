"""What changes nothing goes, what is constant is folded, and what only looks so stays."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.ir import Graph
from cerebras_tf.passes.differentiate import differentiate
from cerebras_tf.passes.simplify import simplify
from tests.graphs import check_pass, graph_of, ops_of, random_inputs, run_plain

F23 = "float32[2,3]"


def apply(graph):
    simplify(graph)


NEUTRAL = {
    "identity": lambda b, x: b.op("identity", x),
    "stop_gradient": lambda b, x: b.op("stop_gradient", x),
    "custom_gradient": lambda b, x: b.op(
        "custom_gradient", x, xs=1, gives=(0,), backward=Graph("unused")
    ),
    "cast to its own dtype": lambda b, x: b.op("cast", x, dtype="float32"),
    "reshape to its own shape": lambda b, x: b.op("reshape", x, shape=(2, 3)),
    "broadcast to its own shape": lambda b, x: b.op("broadcast_to", x, shape=(2, 3)),
    "transpose that keeps order": lambda b, x: b.op("transpose", x, permutation=(0, 1)),
    "adding 0": lambda b, x: b.op("add", x, 0.0),
    "adding to 0": lambda b, x: b.op("add", b.constant(0.0, "float32"), x),
    "subtracting 0": lambda b, x: b.op("sub", x, 0.0),
    "multiplying by 1": lambda b, x: b.op("mul", x, 1.0),
    "dividing by ones": lambda b, x: b.op("div", x, np.ones((2, 3), np.float32)),
    "two negations": lambda b, x: b.op("neg", b.op("neg", x)),
    "two transposes": lambda b, x: b.op(
        "transpose", b.op("transpose", x, permutation=(1, 0)), permutation=(1, 0)
    ),
    "a slice of all": lambda b, x: b.op("slice", x, starts=(0, 0), sizes=(2, 3), strides=(1, 1)),
    "joining with nothing": lambda b, x: b.op(
        "concat", b.constant(np.zeros((2, 0), np.float32)), x, axis=1
    ),
    "adding sums of nothing": lambda b, x: b.op(
        "add",
        b.op(
            "matmul",
            b.op("slice", x, starts=(0, 0), sizes=(2, 0), strides=(1, 1)),
            b.constant(np.zeros((0, 3), np.float32)),
            transpose_a=False,
            transpose_b=False,
        ),
        x,
    ),
    "two reshapes": lambda b, x: b.op("reshape", b.op("reshape", x, shape=(6,)), shape=(2, 3)),
}


@pytest.mark.parametrize("build", NEUTRAL.values(), ids=NEUTRAL.keys())
def test_what_changes_nothing_goes(build):
    graph = graph_of(lambda b, x: b.op("exp", build(b, x)), F23)
    assert check_pass(graph, apply) == ["exp"]


KEPT = {
    "subtracting from 0": lambda b, x: b.op("sub", b.constant(0.0, "float32"), x),
    "1 divided": lambda b, x: b.op("div", b.constant(1.0, "float32"), x),
    "adding 0 that broadcasts": lambda b, x: b.op("add", x, np.zeros((4, 1, 1), np.float32)),
    "multiplying by almost 1": lambda b, x: b.op("mul", x, np.array([1, 1, 2], np.float32)),
    "a cast": lambda b, x: b.op("cast", x, dtype="float64"),
    "a transpose": lambda b, x: b.op("transpose", x, permutation=(1, 0)),
    "a part": lambda b, x: b.op("slice", x, starts=(0, 1), sizes=(2, 2), strides=(1, 1)),
    "joining": lambda b, x: b.op("concat", x, x, axis=1),
}


@pytest.mark.parametrize("build", KEPT.values(), ids=KEPT.keys())
def test_what_changes_something_stays(build):
    assert len(check_pass(graph_of(build, F23), apply)) == 1


def test_transposes_in_a_row_become_one():
    def build(b, x):
        first = b.op("transpose", x, permutation=(1, 2, 0))
        return b.op("transpose", first, permutation=(0, 2, 1))

    graph = graph_of(build, "float32[2,3,4]")
    assert check_pass(graph, apply) == ["transpose"]


def test_constants_are_folded():
    def build(b, x):
        scale = b.op("exp", b.constant(np.arange(3.0), "float32"))
        return b.op("mul", x, b.op("add", scale, 1.0))

    graph = graph_of(build, F23)
    assert check_pass(graph, apply) == ["mul"]
    assert [node.op for node in graph.nodes] == ["constant", "mul"]


def test_random_ops_are_not_folded():
    attrs = {"shape": (4,), "dtype": "float32"}
    drawn_from = (np.array(0), np.array([1, 2]))
    graph = graph_of(lambda b: b.op("random_uniform", *drawn_from, **attrs))
    apply(graph)
    assert ops_of(graph) == ["random_uniform"]


def test_a_copy_with_a_gradient_of_its_own_is_not_computed_beforehand():
    def build(b):
        return b.op("custom_gradient", b.constant(2.0), xs=1, gives=(), backward=Graph("unused"))

    outer = graph_of(lambda b: through(b, build(b), lambda v: b.op("neg", v)))
    apply(outer)
    assert "custom_gradient" in ops_of(outer)


def test_nodes_nobody_needs_go():
    def build(b, x):
        b.op("exp", x)
        return b.op("neg", x)

    assert check_pass(graph_of(build, F23), apply) == ["neg"]


def test_a_scalar_is_not_broadcast_before_an_elementwise_op():
    def build(b, x, s):
        return b.op("mul", x, b.op("broadcast_to", s, shape=(2, 3)))

    assert check_pass(graph_of(build, F23, "float32[]"), apply) == ["mul"]


def test_a_broadcast_that_gives_the_result_its_shape_stays():
    def build(b, x, s):
        return b.op("mul", x, b.op("broadcast_to", s, shape=(2, 3)))

    assert len(check_pass(graph_of(build, "float32[]", "float32[]"), apply)) == 2


def test_graphs_in_attributes_are_simplified():
    def build(b, p, x):
        then, orelse = (
            graph_of(lambda b, x: b.op("exp", b.op("mul", x, 1.0)), F23) for _ in range(2)
        )
        return b.op("cond", p, x, then=then, orelse=orelse)

    graph = graph_of(build, "bool[]", F23)
    check_pass(graph, apply)
    for branch in graph.nodes[-1].subgraphs.values():
        assert ops_of(branch) == ["exp"]


def gradient(b, y, *xs):
    return b.multi("gradient", y, *xs, ys=1, dys=(False,), xs=len(xs))


def stopped_inside_a_branch(b, x):
    then, orelse = (
        graph_of(lambda b, x: b.op("mul", x, b.op("stop_gradient", x)), F23) for _ in range(2)
    )
    return gradient(b, b.op("cond", b.constant(True), x, then=then, orelse=orelse), x)


SEEN_BY_GRADIENTS = {
    "a stop": lambda b, x: gradient(b, b.op("mul", x, b.op("stop_gradient", x)), x),
    "a stop inside a branch": stopped_inside_a_branch,
    "a copy": lambda b, x: through(b, x, lambda v: b.op("identity", v)),
    "a sum with 0": lambda b, x: through(b, x, lambda v: b.op("add", v, 0.0)),
    "the first of two negations": lambda b, x: through(
        b, x, lambda v: b.op("neg", v), lambda v: b.op("neg", v)
    ),
    "the first of two reshapes": lambda b, x: through(
        b, x, lambda v: b.op("reshape", v, shape=(6,)), lambda v: b.op("reshape", v, shape=(3, 2))
    ),
    "the second of three reshapes": lambda b, x: through(
        b,
        b.op("reshape", x, shape=(6,)),
        lambda v: b.op("reshape", v, shape=(3, 2)),
        lambda v: b.op("reshape", v, shape=(1, 6)),
    ),
    "a broadcast": lambda b, x: through(
        b,
        b.op("sum", x, axes=(0, 1), keepdims=False),
        lambda v: b.op("broadcast_to", v, shape=(2, 3)),
        lambda v: b.op("mul", x, v),
    ),
}


def through(b, x, *ways):
    """Gradient of x**3 + f(x) by x and by the value behind the first step of f."""
    first = ways[0](x)
    last = first
    for way in ways[1:]:
        last = way(last)
    flat = [
        b.op("sum", v, axes=tuple(range(v.type.rank)), keepdims=False)
        for v in (b.op("square", last), b.op("mul", x, b.op("square", x)))
    ]
    return gradient(b, b.op("add", *flat), x, first)


@pytest.mark.parametrize("build", SEEN_BY_GRADIENTS.values(), ids=SEEN_BY_GRADIENTS.keys())
def test_what_gradients_tell_apart_stays(build):
    graphs = [graph_of(build, F23) for _ in range(2)]
    apply(graphs[1])
    arrays = random_inputs(graphs[0])
    wanted, found = [], []
    for graph, results in zip(graphs, (wanted, found)):
        differentiate(graph)
        results.extend(run_plain(graph, arrays))
    for ours, theirs in zip(found, wanted):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
