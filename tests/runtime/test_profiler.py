"""A profiler sees every instruction of a step, and changes nothing."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.kernels.compiled_threads import num_threads
from cerebras_tf.kernels.timeline import Timeline, recording, spanned
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.profiler import (
    KERNEL,
    LOOP_STEP,
    WAFER_STEP,
    Profiler,
    TimedBackend,
    write_trace,
)
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
    executor = Executor(program, store, backend, [profiler])
    features = features_of(step)
    executor.run(features)
    profiler.start()
    try:
        for _ in range(steps):
            start = time.perf_counter()
            with spanned(WAFER_STEP, "step"):
                results = executor.run(features)
            profiler.timeline.add(LOOP_STEP, "step", start, time.perf_counter())
    finally:
        profiler.stop()
    executor.run(features)
    return profiler, program, results


def called(program):
    """Instructions that a step calls: all but reshapes of what lies in the arena."""
    runs = [step for step in program.schedule if step.kind == "run"]
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
    assert len(runs) == STEPS * sum(step.kind == "run" for step in program.schedule)
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
    executor = Executor(program, store, backend, [profiler])
    profiler.start()
    try:
        executor.run(features_of(step))
        executor.resized({}).run(features_of(step))
    finally:
        profiler.stop()
    assert [t.item for t in profiler.timings] == 2 * called(program)


def test_a_profile_changes_no_number(found):
    _, program, results = found
    step = product_step()
    store = store_of(step.specs.values(), starting_values(step))
    executor = Executor(program, store, CpuBackend())
    for _ in range(1 + STEPS):
        plain = executor.run(features_of(step))
    np.testing.assert_array_equal(results["loss"], plain["loss"])


def test_a_branch_counts_as_its_conditional():
    step = choosing_step()
    profiler, program, _ = recorded(step)
    assert [t.item for t in profiler.timings] == STEPS * list(program.instructions())
    assert "cond" in {t.item.op for t in profiler.timings}


def test_a_trace_has_a_track_a_thread_and_longer_spans_first(tmp_path):
    timeline = Timeline()
    timeline.add("kernel", "matmul", 10.5, 10.75, flops=8)
    other = threading.Thread(target=timeline.add, args=("read", "w", 10.6, 10.7), name="reader")
    other.start()
    other.join()
    timeline.add("run", "forward", 10.5, 11.0)
    path = tmp_path / "profile" / "trace.json"
    write_trace(timeline, path)
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sorted(tracks.values()) == [threading.current_thread().name, "reader"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [span["name"] for span in spans] == ["forward", "matmul", "w"]
    assert [span["ts"] for span in spans] == [0.0, 0.0, 1e6 * (10.6 - 10.5)]
    assert spans[1]["dur"] == 0.25e6 and spans[1]["args"] == {"flops": 8}
    assert tracks[spans[2]["tid"]] == "reader" and spans[0]["tid"] == spans[1]["tid"]
    assert [file.name for file in path.parent.iterdir()] == ["trace.json"]


def test_threads_of_one_name_share_a_track(tmp_path):
    timeline = Timeline()
    for start in (1.0, 2.0):
        work = threading.Thread(target=timeline.add, args=("step", "step", start, start + 0.5))
        work.start()
        work.join()
    timeline.threads = dict.fromkeys({span.thread for span in timeline.spans}, "wafer")
    write_trace(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["tid"] for event in events] == [0, 0, 0]
