"""Branches of conditionals: compiled once, run in scratch memory, inside one another."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.kernels.scratch import borrow
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Machine
from tests.compiler.test_pipeline import branch
from tests.machines import store_of
from tests.steps import StepBuilder, expected, starting_values

CLOSE = {"rtol": 2e-5, "atol": 1e-6}
SIZE = 8


def product(b, x, w):
    return b.op("matmul", x, w, transpose_a=False, transpose_b=False)


def swapped(b, x, w):
    return b.op("tanh", product(b, w, x))


def choosing_step():
    """x w where p, else tanh(w x); products keep the branches from being inlined."""
    s = StepBuilder()
    p, x, w = s.feature("p", dtype="bool"), s.feature("x", SIZE, SIZE), s.variable("w", SIZE, SIZE)
    graphs = {"then": branch("t", product, x, w), "orelse": branch("e", swapped, x, w)}
    return s.done(y=s.b.op("exp", s.b.op("cond", p, x, w, **graphs)))


def nested_step():
    """Where p: x w where q, else tanh(w x), and w added; else w."""
    s = StepBuilder()
    p, q = (s.feature(name, dtype="bool") for name in ("p", "q"))
    x, w = s.feature("x", SIZE, SIZE), s.variable("w", SIZE, SIZE)

    def outer(b, q, x, w):
        graphs = {"then": branch("t", product, x, w), "orelse": branch("e", swapped, x, w)}
        return b.op("add", b.op("cond", q, x, w, **graphs), w)

    graphs = {
        "then": branch("outer", outer, q, x, w),
        "orelse": branch("other", lambda b, q, x, w: w, q, x, w),
    }
    return s.done(y=s.b.op("cond", p, q, x, w, **graphs))


def growing_step():
    """All rows of x w where p, else the first two: how many is known at run time only."""
    s = StepBuilder()
    p, x, w = s.feature("p", dtype="bool"), s.feature("x", SIZE, SIZE), s.variable("w", SIZE, SIZE)

    def first_two(b, x, w):
        cut = {"starts": (0, 0), "sizes": (2, SIZE), "strides": (1, 1)}
        return product(b, b.op("slice", x, **cut), w)

    graphs = {"then": branch("t", product, x, w), "orelse": branch("e", first_two, x, w)}
    rows = s.b.op("cond", p, x, w, **graphs)
    return s.done(rows=rows, total=s.b.op("sum", rows, axes=(0, 1), keepdims=False))


STEPS = {"one": choosing_step, "nested": nested_step, "unknown sizes": growing_step}


def features_for(step, seed, **predicates):
    x = np.random.default_rng(seed).standard_normal((SIZE, SIZE)).astype(np.float32)
    given = {"x": x, **{name: np.array(value) for name, value in predicates.items()}}
    return {name: given[name] for name in step.features}


def machine_of(step, backend=None):
    backend = backend or CpuBackend()
    program = compile_step(step, Options(price=backend.price))
    assert any(item.op == "cond" for item in program.instructions())
    store = store_of(step.specs.values(), starting_values(step))
    return Machine(program, store, backend)


@pytest.mark.parametrize("name", STEPS)
def test_each_side_is_computed_in_turns(name):
    step = STEPS[name]()
    machine = machine_of(step)
    found = []
    for seed, sides in enumerate(((True, True), (False, True), (True, False), (True, True))):
        features = features_for(step, seed, p=sides[0], q=sides[1])
        wanted, _ = expected(STEPS[name](), starting_values(step), [features])
        found.append((machine.run(features), wanted))
    for ours, theirs in found:  # at the end: a later run must not have changed them
        for key in theirs:
            np.testing.assert_allclose(ours[key], theirs[key], err_msg=key, **CLOSE)


def test_a_branch_decides_how_many_rows_there_are():
    step = growing_step()
    machine = machine_of(step)
    shapes = [machine.run(features_for(step, 0, p=p))["rows"].shape for p in (True, False, True)]
    assert shapes == [(SIZE, SIZE), (2, SIZE), (SIZE, SIZE)]


@pytest.mark.parametrize("name", STEPS)
def test_branches_follow_their_memory_when_it_moves(name):
    """What another kernel has borrowed where the branch ran before is not written."""
    step = STEPS[name]()
    with borrow((1 << 20,), np.uint8):
        pass  # the memory itself stays where it is from here on
    machine = machine_of(step)
    features = features_for(step, 3, p=True, q=False)
    wanted = machine.run(features)
    for size in (1 << 12, 1 << 22):  # within the memory, and beyond it
        with borrow((size,), np.uint8) as held:
            held[:] = 0x5A
            found = machine.run(features)
            assert np.all(held == 0x5A)
        for key in wanted:
            np.testing.assert_array_equal(found[key], wanted[key])


def test_the_memory_of_branches_is_planned_and_measured():
    step = nested_step()
    machine = machine_of(step)
    machine.run(features_for(step, 0, p=True, q=False))
    planned = machine.program.scratch_bytes
    assert 0 < machine.scratch_bytes <= planned
    assert planned <= 1.05 * machine.scratch_bytes
