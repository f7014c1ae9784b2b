"""Loops: types, gradients, and that they compute what the unrolled graph does."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler import pipeline
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import GradientError, GraphError
from cerebras_tf.ir import Graph, TensorType, parse_graph, print_graph
from cerebras_tf.ops import Builder
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from tests.graphs import graph_of, run_plain
from tests.machines import store_of
from tests.messages import raises
from tests.passes.test_differentiate import check_by_differences
from tests.steps import StepBuilder, expected, starting_values

STEPS, BATCH, WIDTH = 4, 3, 5


def cell(b, h, x, w, v):
    """h' = tanh(x w + h v), and 2 h'."""

    def product(a, c):
        return b.op("matmul", a, c, transpose_a=False, transpose_b=False)

    h = b.op("tanh", b.op("add", product(x, w), product(h, v)))
    return [h, b.op("mul", h, 2.0)]


def body_of(build, *values):
    graph = Graph("body")
    inputs = [graph.add_input(f"i{at}", value.type) for at, value in enumerate(values)]
    graph.outputs = build(Builder(graph), *inputs)
    return graph


def slice_of(b, x, at):
    shape = x.shape[1:]
    starts = (at, *(0 for _ in shape))
    part = b.op("slice", x, starts=starts, sizes=(1, *shape), strides=(1,) * len(x.shape))
    return b.op("reshape", part, shape=shape)


def scan_attrs(body, carries, xs, length, **attrs):
    given = {"reverse": False, "counted": False, **attrs}
    return {"body": body, "carries": carries, "xs": xs, "length": length, **given}


def recurrent(b, x, h, w, v, looped, reverse=False):
    """The last h and all 2 h of a recurrent layer, as a loop or unrolled."""
    if looped:
        body = body_of(cell, h, slice_of(b, x, 0), w, v)
        attrs = scan_attrs(body, 1, 1, x.shape[0], reverse=reverse)
        return b.multi("scan", h, x, w, v, **attrs)
    ys = []
    for at in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        h, y = cell(b, h, slice_of(b, x, at), w, v)
        ys.append(b.op("reshape", y, shape=(1, *y.shape)))
    return [h, b.op("concat", *(ys[::-1] if reverse else ys), axis=0)]


def recurrent_step(looped, reverse):
    s = StepBuilder()
    x = s.feature("x", STEPS, BATCH, WIDTH)
    weights = [s.variable(name, WIDTH, WIDTH) for name in "wv"]
    start = s.variable("start", BATCH, WIDTH)
    h, ys = recurrent(s.b, x, start, *weights, looped, reverse)
    total = s.b.op("sum", s.b.op("square", ys), axes=(0, 1, 2), keepdims=False)
    loss = s.b.op("add", total, s.b.op("sum", h, axes=(0, 1), keepdims=False))
    names = ["w", "v", "start"]
    results = dict(zip(names, s.gradients(loss, names)))
    return s.done(loss=loss, h=h, ys=ys, **results)


def run_step(step, features, **options):
    program = compile_step(step, Options(price=CpuBackend().price, **options))
    store = store_of(step.specs.values(), starting_values(step))
    executor = Executor(program, store, CpuBackend())
    return program, [executor.run(features) for _ in range(2)][-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_computes_what_the_unrolled_graph_does_bit_for_bit(reverse, monkeypatch):
    monkeypatch.setattr(pipeline, "hoist_loops", lambda graph: None)  # which sums in another order
    x = np.random.default_rng(1).standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)
    _, wanted = run_step(recurrent_step(False, reverse), {"x": x})
    program, found = run_step(recurrent_step(True, reverse), {"x": x})
    assert sum(item.op == "scan" for item in program.instructions()) == 2
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    step = recurrent_step(True, reverse)
    plain, _ = expected(step, starting_values(step), [{"x": x}])
    for name in wanted:
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-5, atol=1e-5, err_msg=name)


D, F35 = "float64[3,5]", "float32[3,5]"
SQUARE = "float64[5,5]"


def test_the_gradient_of_a_scan_is_that_of_differences():
    def function(b, x, h, w, v):
        last, ys = recurrent(b, x, h, w, v, True)
        both = b.op("add", b.op("sum", b.op("sin", ys), axes=(0,), keepdims=False), last)
        return b.op("sum", both, axes=(0, 1), keepdims=False)

    check_by_differences(function, "float64[4,3,5]", D, SQUARE, SQUARE)


def test_a_counted_scan_stops_early_and_its_gradient_too():
    def function(b, x, h, w, v):
        body = body_of(cell, h, slice_of(b, x, 0), w, v)
        count = b.constant(2, "int32")
        last, ys = b.multi("scan", count, h, x, w, v, **scan_attrs(body, 1, 1, 4, counted=True))
        both = b.op("add", b.op("sum", b.op("sin", ys), axes=(0,), keepdims=False), last)
        return b.op("sum", both, axes=(0, 1), keepdims=False)

    check_by_differences(function, "float64[4,3,5]", D, SQUARE, SQUARE)


def test_a_scan_within_a_scan_is_differentiated():
    def function(b, x, h, w, v):
        def outer(b, h, x, w, v):
            inner = body_of(lambda b, h, w, v: cell(b, h, x_of(h), w, v)[:1], h, w, v)
            return b.multi("scan", b.op("add", h, x), w, v, **scan_attrs(inner, 1, 0, 2))

        def x_of(h):
            return h

        body = body_of(outer, h, slice_of(b, x, 0), w, v)
        (last,) = b.multi("scan", h, x, w, v, **scan_attrs(body, 1, 1, 2))
        return b.op("sum", last, axes=(0, 1), keepdims=False)

    check_by_differences(function, "float64[2,3,5]", D, SQUARE, SQUARE)


def halving(b, x, w, bound):
    """x / 2 + w until no element exceeds 4."""

    def goes_on(b, x, w):
        return [b.op("greater", b.op("max", x, axes=(0, 1), keepdims=False), 4.0)]

    def halved(b, x, w):
        return [b.op("add", b.op("mul", b.op("sin", x), b.op("mul", x, 0.5)), w)]

    graphs = {"cond": body_of(goes_on, x, w), "body": body_of(halved, x, w)}
    return b.multi("while", x, w, carries=1, bound=bound, **graphs)


def test_a_while_with_a_bound_has_a_gradient():
    def function(b, x, w):
        return b.op("sum", *halving(b, b.op("mul", x, 20.0), w, 6), axes=(0, 1), keepdims=False)

    check_by_differences(function, D, D)


def test_a_while_without_a_bound_runs_and_has_none():
    def step():
        s = StepBuilder()
        x, w = s.feature("x", BATCH, WIDTH), s.variable("w", BATCH, WIDTH)
        return s, halving(s.b, x, w, None)[0]

    s, y = step()
    x = np.full((BATCH, WIDTH), 37.0, np.float32)
    _, found = run_step(s.done(y=y), {"x": x})
    graph = graph_of(lambda b, x, w: halving(b, x, w, None), F35, F35)
    (wanted,) = run_plain(graph, [x, starting_values(s.step)["w"]])
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-6)
    s, y = step()
    loss = s.b.op("sum", y, axes=(0, 1), keepdims=False)
    (gradient,) = s.gradients(loss, ["w"])
    with pytest.raises(GradientError, match="maximum_iterations"):
        compile_step(s.done(loss=loss, w=gradient))


def test_the_types_of_a_loop_must_fit():
    b = Builder(Graph())
    h, x = (
        b.graph.add_input(n, TensorType("float32", shape))
        for n, shape in (("h", (3,)), ("x", (4, 3)))
    )
    body = graph_of(lambda b, h, x: [b.op("add", h, x)], "float32[3]", "float32[3]")
    assert [v.type for v in b.multi("scan", h, x, **scan_attrs(body, 1, 1, 4))] == [h.type]
    assert b.multi("scan", x, **scan_attrs(graph_of(lambda b, x: x, "float32[3]"), 0, 1, 4))[
        0
    ].shape == (4, 3)
    with raises(GraphError, "first axis of xs"):
        b.multi("scan", h, x, **scan_attrs(body, 1, 1, 5))
    shorter = graph_of(lambda b, h, x: [b.op("add", h, x)], "float32[2]", "float32[2]")
    with raises(GraphError, "operands must be"):
        b.multi("scan", h, x, **scan_attrs(shorter, 1, 1, 4))


def test_a_loop_has_a_text_form():
    def build(b, x, h, w, v):
        return recurrent(b, x, h, w, v, True)

    graph = graph_of(build, "float32[4,3,5]", "float32[3,5]", "float32[5,5]", "float32[5,5]")
    text = print_graph(graph)
    assert print_graph(parse_graph(text)) == text
