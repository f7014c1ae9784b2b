"""A second structural op works without a change to any pass or backend.

`repeat(*xs; body, times)` applies a body to its own outputs, as a loop does.
"""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir import Graph
from cerebras_tf.ir.program_file import load_program, save_program
from cerebras_tf.ops import OPS, Builder
from cerebras_tf.ops.control import inline
from cerebras_tf.ops.registry import Region, Structure, register
from cerebras_tf.ops.rows import across
from cerebras_tf.passes.inline_regions import inline_regions
from cerebras_tf.passes.lower_products import lower_products
from cerebras_tf.runtime.cpu import STRUCTURAL, CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.subprogram import Subprogram
from tests.graphs import graph_of, ops_of
from tests.machines import contents, store_of
from tests.steps import StepBuilder, expected, features_of, starting_values

TIMES = 3


def regions(node):
    positions = tuple(range(len(node.inputs)))
    return [Region(node.attrs["body"], positions, positions, tuple(zip(positions, positions)))]


def unrolled(b, node):
    values = node.inputs
    for _ in range(node.attrs["times"]):
        values = inline(b, node.attrs["body"], values)
    return values


def vjp(b, node, dys, reverse):
    given = [(y, dy) for y, dy in zip(unrolled(b, node), dys) if dy is not None]
    return reverse(b, [y for y, _ in given], [dy for _, dy in given], node.inputs)


def cost(attrs):
    body = attrs["body"]
    return attrs["times"] * body.flops, body.arena_bytes + body.scratch_bytes


def load(instruction, backend, inputs, outputs):
    body = Subprogram(instruction.attrs["body"], backend)

    def call(arrays, out):
        for _ in range(instruction.attrs["times"] - 1):
            arrays = body.run(arrays, [None] * len(out))
        return body.run(arrays, out)

    return call


@pytest.fixture(autouse=True)
def repeat():
    structure = Structure(
        regions,
        vjp=vjp,
        inline=unrolled,
        compiles_regions=True,
        signature=lambda attrs, inputs, outputs: {"body": (list(inputs), list(outputs))},
        cost=cost,
    )
    register("repeat", lambda xs, _: [x.type for x in xs], rows=across, structure=structure)
    STRUCTURAL["repeat"] = load
    yield
    del OPS["repeat"], STRUCTURAL["repeat"]


def body_of(build, *xs):
    graph = Graph("body")
    graph.outputs = build(Builder(graph), *[graph.add_input("x", x.type) for x in xs])
    return graph


def layer(b, x, w):
    return [b.op("tanh", b.op("matmul", x, w)), w]


def step_of(repeated):
    s = StepBuilder()
    x, w = s.feature("x", 32, 32), s.variable("w", 32, 32)
    y = s.b.op("exp", x)
    if repeated:
        y, _ = s.b.multi("repeat", y, w, body=body_of(layer, x, w), times=TIMES)
    else:
        for _ in range(TIMES):
            y, _ = layer(s.b, y, w)
    s.momentum(s.b.op("sum", s.b.op("square", y), axes=(0, 1), keepdims=False), ["w"], False)
    return s.done(y=y)


def test_it_trains_as_the_unrolled_graph_does(tmp_path):
    step, backend = step_of(repeated=True), CpuBackend()
    variables, features = starting_values(step), features_of(step)
    wanted, state = expected(step_of(repeated=False), variables, [features])
    save_program(compile_step(step, Options(price=backend.price)), tmp_path / "program")
    program = load_program(tmp_path / "program")
    (item,) = [item for item in program.instructions() if item.op == "repeat"]
    assert item.cost.flops == TIMES * item.attrs["body"].flops > 0
    store = store_of(step.specs.values(), variables)
    found = Executor(program, store, backend).run(features)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(contents(store)["w"], state["w"], rtol=2e-5, atol=1e-6)


def power(b, x):
    return [b.op("matmul", x, x)]


def exponential(b, x):
    return [b.op("exp", x)]


@pytest.mark.parametrize(
    ("body", "ops"), [(exponential, ["exp"] * TIMES), (power, ["repeat"])], ids=["cheap", "costly"]
)
def test_only_cheap_bodies_are_inlined(body, ops):
    def build(b, x):
        return b.multi("repeat", x, body=body_of(body, x), times=TIMES)

    graph = graph_of(build, "float32[4,4]")
    inline_regions(graph)
    assert ops_of(graph) == ops


@pytest.mark.parametrize("decides", [True, False])
def test_a_product_that_decides_an_integer_after_another_iteration_stays_float32(decides):
    def swap(b, x, y):
        return [b.op("neg", y), b.op("matmul", x, y)]

    def build(b, x, y):
        first, _ = b.multi("repeat", x, y, body=body_of(swap, x, y), times=TIMES)
        return b.op("argmax", first, axis=1, dtype="int64") if decides else first

    graph = graph_of(build, "float32[128,128]", "float32[128,128]")
    lower_products(graph)
    _, product = graph.nodes[0].attrs["body"].nodes
    assert ("compute" in product.attrs) is not decides
