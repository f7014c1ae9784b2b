"""The boundary between reverse pass and update stays through every pass, whatever the update is."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler import pipeline
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir import StepGraph
from cerebras_tf.ops import Builder
from cerebras_tf.runtime.verify_program import verify_program
from tests.machines import run_program
from tests.steps import StepBuilder, expected, starting_values

CLOSE = {"rtol": 2e-5, "atol": 1e-6}


def bounded_gradients(s, loss, names):
    """Gradients of a loss behind their boundaries, as capture makes them."""
    found = s.gradients(loss, names)
    return [s.b.op("parameter_gradient", g, variable=n) for g, n in zip(found, names)]


def total(b, x):
    return b.op("sum", x, axes=tuple(range(x.type.rank)), keepdims=False)


def loss_of(s):
    """Two layers and their names."""
    x = s.feature("x", 8, 4)
    hidden = s.b.op("tanh", s.matmul(x, s.variable("first", 4, 4)))
    return total(s.b, s.b.op("square", s.matmul(hidden, s.variable("second", 4, 4))))


def moved(s, name, gradient):
    step = s.b.op("mul", gradient, 0.1)
    s.step.updates[name] = s.b.op("sub", s.step.variables[name], step)


def plain_step():
    s = StepBuilder()
    names = ("first", "second")
    for name, gradient in zip(names, bounded_gradients(s, loss_of(s), names)):
        moved(s, name, gradient)
    return s.done()


def clipped_step():
    """The norm over all gradients is 1 at most."""
    s = StepBuilder()
    b, names = s.b, ("first", "second")
    found = bounded_gradients(s, loss_of(s), names)
    first, second = (total(b, b.op("square", g)) for g in found)
    norm = b.op("maximum", b.op("sqrt", b.op("add", first, second)), 1.0)
    for name, gradient in zip(names, found):
        moved(s, name, b.op("div", gradient, norm))
    return s.done(norm=norm)


def accumulating_step():
    """Gradients add up; the weights move by their sum where `full` says so."""
    s = StepBuilder()
    b, names = s.b, ("first", "second")
    full = s.feature("full", dtype="bool")
    for name, gradient in zip(names, bounded_gradients(s, loss_of(s), names)):
        held = s.variable(f"{name}/sum", 4, 4)
        so_far = b.op("add", held, gradient)
        w = s.step.variables[name]
        s.step.updates[name] = b.op("select", full, b.op("sub", w, so_far), w)
        s.step.updates[f"{name}/sum"] = b.op("select", full, b.op("mul", held, 0.0), so_far)
    return s.done()


def sparse_step():
    """Rows of a table and a matrix behind them, clipped together."""
    s = StepBuilder()
    b = s.b
    table, w = s.variable("table", 9, 4), s.variable("w", 4, 4)
    ids = s.feature("ids", 6, dtype="int64")
    rows = b.op("gather", table, ids, axis=0, batch_dims=0)
    loss = total(b, b.op("square", s.matmul(rows, w)))
    by_rows, by_w = b.multi("gradient", loss, rows, w, ys=1, dys=(False,), xs=2)
    values, numbers = b.multi("parameter_gradient", by_rows, ids, variable="table")
    by_w = b.op("parameter_gradient", by_w, variable="w")
    factor = b.op("reciprocal", b.op("maximum", total(b, b.op("square", values)), 1.0))
    summed = b.op("scatter_add_rows", numbers, b.op("mul", values, factor), num_rows=9)
    moved(s, "table", summed)
    moved(s, "w", b.op("mul", by_w, factor))
    return s.done()


STEPS = {
    "plain": plain_step,
    "clipped": clipped_step,
    "accumulating": accumulating_step,
    "sparse": sparse_step,
}


def shape_of(step):
    """Of every variable, how many values each of its boundaries passes on."""
    return {name: [len(n.outputs) for n in nodes] for name, nodes in step.gradients.items()}


def inputs_for(step, seed=1):
    random = np.random.default_rng(seed)
    found = {"x": random.standard_normal((8, 4)).astype(np.float32)}
    found.update(ids=random.integers(0, 9, 6), full=np.array(seed % 2 == 0))
    return {name: found[name] for name in step.features}


@pytest.mark.parametrize("options", [Options(), Options(streaming=False), Options(fuse=False)])
@pytest.mark.parametrize("name", STEPS)
def test_every_pass_leaves_the_boundaries(name, options, monkeypatch):
    step, seen, real = STEPS[name](), [], pipeline.verify
    before = shape_of(step)

    def seeing(graph, *given):
        seen.append(shape_of(StepGraph(graph)))
        real(graph, *given)

    monkeypatch.setattr(pipeline, "verify", seeing)
    program = compile_step(step, options)
    assert len(before) == 2 and len(seen) >= 8
    assert [found for found in seen if found != before] == []
    assert shape_of(step) == before
    slots = {name: [len(found) for found in given] for name, given in program.gradients.items()}
    assert slots == before


@pytest.mark.parametrize("name", STEPS)
def test_a_boundary_changes_no_number_and_costs_no_instruction(name):
    step = STEPS[name]()
    variables = starting_values(step)
    batches = [inputs_for(step, seed) for seed in range(3)]
    wanted = expected(STEPS[name](), variables, batches)
    program = compile_step(step)
    verify_program(program)
    found = run_program(program, step, variables, batches)
    for ours, theirs in zip(found, wanted):
        for key in theirs:
            np.testing.assert_allclose(ours[key], theirs[key], err_msg=key, **CLOSE)
    assert "parameter_gradient" not in {item.op for item in program.instructions()}


@pytest.mark.parametrize("name", ["plain", "accumulating"])
def test_what_is_put_at_the_boundary_holds_for_every_update(name):
    """With gradients halved in front of it, weights move half as far."""
    step, other = STEPS[name](), STEPS[name]()
    b = Builder(other.graph)
    for nodes in other.gradients.values():
        for node in nodes:
            node.inputs[0] = b.op("mul", node.inputs[0], 0.5)
    other.graph.sort()
    variables, batch = starting_values(step), inputs_for(step, 2)
    _, whole = run_program(compile_step(step), step, variables, [batch])
    _, half = run_program(compile_step(other), other, variables, [batch])
    sums = {n: variables.get(f"{n}/sum", 0.0) for n in ("first", "second")}
    for n, so_far in sums.items():
        moves = [after[n] - variables[n] + so_far for after in (whole, half)]
        assert np.abs(moves[0]).max() > 1e-2
        np.testing.assert_allclose(moves[1], moves[0] / 2, rtol=1e-3, atol=1e-5)
