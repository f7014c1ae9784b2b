"""A profiler sees every instruction of a step, and changes nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.kernels.compiled_threads import num_threads
from cerebras_tf.kernels.timeline import recording, spanned
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Machine
from cerebras_tf.runtime.profiler import KERNEL, LOOP_STEP, WAFER_STEP, Profiler, TimedBackend
from tests.machines import store_of
from tests.runtime.test_subprogram import choosing_step
from tests.steps import StepBuilder, features_of, starting_values

STEPS = 2


def product_step():
    """A product large enough for several threads, and its update."""
    s = StepBuilder()
    x = s.feature("x", 512, 512)
    weight = s.variable("weight", 512, 512)
    y = s.b.op("tanh", s.matmul(x, weight))
    y = s.b.op("exp", s.b.op("reshape", y, shape=(256, 1024)))
    loss = s.b.op("mean", y, axes=(0, 1), keepdims=False)
    s.momentum(loss, ["weight"], clip=False)
    return s.done(loss=loss)


def recorded(step, steps=STEPS):
    """A profiler that saw some steps, and the program."""
    profiler = Profiler()
    backend = TimedBackend(None, profiler)
    program = compile_step(step, Options(price=backend.price))
    store = store_of(step.specs.values(), starting_values(step))
    machine = Machine(program, store, backend, [profiler])
    features = features_of(step)
    machine.run(features)
    profiler.start()
    try:
        for _ in range(steps):
            start = time.perf_counter()
            with spanned(WAFER_STEP, "step"):
                results = machine.run(features)
            profiler.timeline.add(LOOP_STEP, "step", start, time.perf_counter())
    finally:
        profiler.stop()
    machine.run(features)
    return profiler, program, results


def called(program):
    """Instructions that a step calls: all but reshapes of what lies in the arena."""
    runs = [step for step in program.steps if step.kind == "run"]
    return [item for run in runs for item in program.computed(run)]


@pytest.fixture(scope="module")
def found():
    return recorded(product_step())


def test_every_instruction_is_timed_once_a_step(found):
    profiler, program, _ = found
    assert [t.item for t in profiler.timings] == STEPS * called(program)
    left_out = [item for item in program.instructions() if item not in called(program)]
    assert left_out and {item.op for item in left_out} == {"reshape"}
    assert sum(t.cost.flops for t in profiler.timings) == STEPS * program.flops > 0
    assert all(t.elapsed_s > 0 and t.cpu_s >= 0 for t in profiler.timings)
    assert {t.direction for t in profiler.timings} == {"forward", "backward", "update"}
    assert recording() is None


def test_kernels_lie_within_the_steps_of_the_schedule(found):
    profiler, program, _ = found
    spans = profiler.timeline.spans
    runs = [span for span in spans if span.kind == "run"]
    assert len(runs) == STEPS * sum(step.kind == "run" for step in program.steps)
    for kernel in (span for span in spans if span.kind == KERNEL):
        assert any(run.start <= kernel.start and kernel.end <= run.end for run in runs)
    assert sum(span.kind == "stream_in" for span in spans) > 0


@pytest.mark.skipif(num_threads() < 2, reason="one thread does all of it")
def test_parts_of_kernels_stand_on_the_tracks_of_their_threads(found):
    profiler, _, _ = found
    parts = [span for span in profiler.timeline.spans if span.kind == "part of a kernel"]
    names = {profiler.timeline.threads[span.thread] for span in parts}
    assert all(name == "wafer" or name.startswith("cerebras_tf-kernels") for name in names)
    assert {span.name for span in parts} >= {"matmul"}


def test_machines_for_other_sizes_may_be_made_while_a_profile_runs():
    profiler = Profiler()
    backend = TimedBackend(None, profiler)
    step = product_step()
    program = compile_step(step, Options(price=backend.price))
    store = store_of(step.specs.values(), starting_values(step))
    machine = Machine(program, store, backend, [profiler])
    profiler.start()
    try:
        machine.run(features_of(step))
        machine.resized({}).run(features_of(step))
    finally:
        profiler.stop()
    assert [t.item for t in profiler.timings] == 2 * called(program)


def test_a_profile_changes_no_number(found):
    _, program, results = found
    step = product_step()
    store = store_of(step.specs.values(), starting_values(step))
    machine = Machine(program, store, CpuBackend())
    for _ in range(1 + STEPS):
        plain = machine.run(features_of(step))
    np.testing.assert_array_equal(results["loss"], plain["loss"])


def test_a_branch_counts_as_its_conditional():
    step = choosing_step()
    profiler, program, _ = recorded(step)
    assert [t.item for t in profiler.timings] == STEPS * list(program.instructions())
    assert "cond" in {t.item.op for t in profiler.timings}
