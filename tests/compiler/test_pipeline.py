"""The passes in their order: what only holds when they run together."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step, run_passes
from cerebras_tf.errors import CapacityError, GraphError, StoreError, UnsupportedOpError
from cerebras_tf.ops import OPS
from cerebras_tf.runtime.verify_program import verify_program
from tests.graphs import graph_of
from tests.machines import run_program
from tests.messages import raises
from tests.steps import StepBuilder, residual_step, starting_values


def branch(name, build, *values):
    return graph_of(build, *(str(value.type) for value in values))


def guarded_step():
    """w / |w|^2 where the norm is not zero, else w: tf.cond guards the division."""
    s = StepBuilder()
    w, x = s.variable("w", 4), s.feature("x", 4)
    norm = s.b.op("sum", s.b.op("square", w), axes=(0,), keepdims=False)
    graphs = {
        "then": branch("t", lambda b, v, n: b.op("div", v, n), w, norm),
        "orelse": branch("e", lambda b, v, n: b.op("mul", v, 2.0), w, norm),
    }
    (unit,) = s.b.multi("cond", s.b.op("greater", norm, 0.0), w, norm, **graphs)
    loss = s.b.op("sum", s.b.op("mul", unit, x), axes=(0,), keepdims=False)
    s.momentum(loss, ["w"], clip=False)
    return s.done(loss=loss)


def test_the_branch_not_taken_does_not_reach_the_gradient():
    step = guarded_step()
    program = compile_step(step)
    verify_program(program)
    variables = {"w": np.zeros(4, np.float32), "w/Momentum": np.zeros(4, np.float32)}
    x = np.arange(4, dtype=np.float32)
    _, state = run_program(program, step, variables, [{"x": x}])
    np.testing.assert_allclose(state["w"], -0.01 * 2 * x, rtol=1e-6)


def test_a_broken_pass_is_named_with_those_before_it():
    step = residual_step(1)

    def breaking(s):
        s.graph.nodes.reverse()

    with raises(GraphError, "breaking", "idle", "graph step"):
        run_passes(step, [("idle", lambda s: None), ("breaking", breaking)])


@pytest.mark.parametrize("kind", [CapacityError, StoreError])
def test_what_a_pass_says_of_memory_and_disk_stays_as_it_is(kind):
    def full(s):
        raise kind("memoryx_ram_gb: too little")

    with pytest.raises(kind, match=r"^memoryx_ram_gb: too little$"):
        run_passes(residual_step(1), [("full", full)])


def test_an_op_without_a_gradient_rule_is_named_with_the_pass(monkeypatch):
    tanh = OPS["tanh"]
    monkeypatch.setitem(OPS, "no_rule", dataclasses.replace(tanh, name="no_rule", vjp=None))
    s = StepBuilder()
    w = s.variable("w", 4)
    loss = s.b.op("sum", s.b.op("no_rule", w), axes=(0,), keepdims=False)
    s.momentum(loss, ["w"], clip=False)
    with raises(UnsupportedOpError, "differentiate", "no_rule"):
        compile_step(s.done(loss=loss))


def test_the_collector_runs_again_after_compiling_and_after_an_error():
    broken = residual_step(2)
    broken.graph.nodes.reverse()
    assert gc.isenabled()
    compile_step(residual_step(2))
    assert gc.isenabled()
    with pytest.raises(GraphError):
        compile_step(broken)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        compile_step(residual_step(2))
        assert not gc.isenabled()
    finally:
        gc.enable()


def half_step():
    s = StepBuilder()
    x = s.feature("x", 2, 2, dtype="float16")
    w = s.variable("w", 2, 2)
    half = s.b.op("cast", w, dtype="float16")
    y = s.b.op("cast", s.b.op("mul", s.matmul(x, half), 3e4), dtype="float32")
    return s.done(y=y)


@pytest.mark.parametrize(("precision", "finite"), [("float32", True), ("emulate", False)])
def test_half_precision_overflows_only_where_it_is_kept(precision, finite):
    step = half_step()
    program = compile_step(step, Options(precision=precision))
    features = {"x": np.full((2, 2), 3, np.float16)}
    results, _ = run_program(program, step, {"w": np.ones((2, 2), np.float32)}, [features])
    assert np.isfinite(results["y"]).all() == finite


def test_compiling_twice_gives_equal_programs():
    first, second = (compile_step(residual_step(3)) for _ in range(2))
    assert first.schedule == second.schedule
    assert first.slots == second.slots
    assert starting_values(residual_step(3)).keys() == first.variables.keys()
