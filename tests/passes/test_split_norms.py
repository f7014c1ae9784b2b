"""Norms of all gradients part from updates: what each variable's update needs stays together."""

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir import verify
from cerebras_tf.ir.schedule import StreamIn
from cerebras_tf.memoryx.store import MemoryStore, write
from cerebras_tf.ops import infer
from cerebras_tf.passes.split_norms import split_norms
from tests.graphs import run_plain
from tests.machines import client_of
from tests.steps import StepBuilder

BLOCKS, WIDTH = 6, 32


def square_sum(b, x):
    return b.op("sum", b.op("square", x), axes=tuple(range(x.type.rank)), keepdims=False)


def scaled_step(guarded=False, own_norms=False):
    """Blocks whose gradients are divided by a scale, then clipped by their global norm."""
    s = StepBuilder()
    b = s.b
    x, scale = s.feature("x", 8, WIDTH), s.feature("scale")
    names = [f"w{i}" for i in range(BLOCKS)]
    stream = x
    for name in names:
        stream = b.op("add", stream, b.op("tanh", s.matmul(stream, s.variable(name, WIDTH, WIDTH))))
    loss = b.op("mul", square_sum(b, stream), scale)
    found = [
        b.op("parameter_gradient", gradient, variable=name)
        for name, gradient in zip(names, s.gradients(loss, names))
    ]
    unscaled = [b.op("div", g, scale) for g in found]
    norms = [b.op("reshape", square_sum(b, g), shape=(1,)) for g in unscaled]
    total = b.op("concat", *norms, axis=0)
    norm = b.op("sqrt", b.op("sum", total, axes=(0,), keepdims=False))
    factor = b.op("reciprocal", b.op("maximum", norm, 1.0))
    is_finite = b.op("is_finite", norm)
    for name, g in zip(names, unscaled):
        w = s.step.variables[name]
        if own_norms:
            update = b.op("mul", g, 0.1)
            new = b.op("sub", w, b.op("mul", update, b.op("rsqrt", square_sum(b, update))))
        else:
            new = b.op("sub", w, b.op("mul", b.op("mul", g, factor), 0.1))
        s.step.updates[name] = b.op("select", is_finite, new, w) if guarded else new
    s.step.results = {"loss": loss, "norm": norm}
    return s.step


def features(batch=0):
    x = np.random.default_rng(batch).standard_normal((8, WIDTH)).astype(np.float32)
    return {"x": x, "scale": np.float32(1024.0)}


def start(step):
    random = np.random.default_rng(1)
    return {
        name: random.standard_normal(spec.type.shape).astype(np.float32) / 8
        for name, spec in step.specs.items()
    }


def trained(step, options, batches=3):
    store = MemoryStore(step.specs.values())
    for name, content in start(step).items():
        write(store, name, content)
    program = compile_step(step, options)
    session = client_of(program, store)
    return [session.run(features(i))["norm"].item() for i in range(batches)], program


@pytest.mark.parametrize("guarded", [False, True])
def test_every_update_brings_its_own_variables_only(guarded):
    _, program = trained(scaled_step(guarded), Options(staging=True))
    groups = [
        {program.slots[slot].type.bytes for slot in step.slots}
        for step in program.schedule
        if isinstance(step, StreamIn)
    ]
    most = max(len(step.slots) for step in program.schedule if isinstance(step, StreamIn))
    assert groups and most <= 2  # a weight, and its gradient that waited


@pytest.mark.parametrize("guarded", [False, True])
def test_activations_do_not_grow_with_the_updates(guarded):
    """Gradients that wait are kept once, as they were made, and nothing made of them."""
    _, program = trained(scaled_step(guarded), Options(streaming=False))
    weights = BLOCKS * WIDTH * WIDTH * 4
    streams = 4 * (BLOCKS + 2) * 8 * WIDTH * 4
    assert program.arena_bytes < weights + streams + 3 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("guarded", [False, True])
def test_numbers_stay_the_same(guarded):
    results = [
        trained(scaled_step(guarded), options)[0]
        for options in (Options(fuse=False), Options(), Options(staging=True))
    ]
    np.testing.assert_allclose(results[1], results[0], 1e-5)
    assert results[1] == results[2]


def update_graph(own_norms):
    """A graph of updates alone, as it is behind differentiation: gradients are inputs."""
    s = StepBuilder()
    b = s.b
    gradients = [s.feature(f"g{i}", 4, 5) for i in range(3)]
    scaled = [b.op("mul", g, 0.5) for g in gradients]
    norm = b.op("sqrt", b.op("add", *[square_sum(b, g) for g in scaled[:2]]))
    for i, g in enumerate(scaled):
        w = s.variable(f"w{i}", 4, 5)
        by = b.op("sqrt", square_sum(b, g)) if own_norms else norm
        s.step.updates[f"w{i}"] = b.op("sub", w, b.op("mul", g, by))
    return s.step


def run(step):
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(v.type.shape).astype(np.float32) for v in step.graph.inputs]
    return run_plain(step.graph, inputs)


def test_outputs_stay_the_same_and_a_second_run_changes_nothing():
    step = update_graph(own_norms=False)
    wanted = run(step)
    count = len(step.graph.nodes)
    split_norms(step.graph, list(step.updates.values()))
    verify(step.graph, infer)
    assert len(step.graph.nodes) == count + 2
    for found, expected in zip(run(step), wanted):
        np.testing.assert_array_equal(found, expected)
    split_norms(step.graph, list(step.updates.values()))
    assert len(step.graph.nodes) == count + 2


def test_a_norm_for_its_own_update_alone_is_left():
    step = update_graph(own_norms=True)
    count = len(step.graph.nodes)
    split_norms(step.graph, list(step.updates.values()))
    step.graph.prune()
    assert len(step.graph.nodes) <= count
    assert not any(node.op == "mul" and node.layer >= 0 for node in step.graph.nodes)
