"""Steps at an address are profiled there; their times arrive on the client's clock."""

from __future__ import annotations

import time

import pytest

from cerebras_tf.address.profile import clock_offset
from cerebras_tf.errors import DataError
from cerebras_tf.kernels.timeline import recording
from cerebras_tf.memoryx.store import write
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.profile_tables import bounds_of, tables
from cerebras_tf.runtime.profiler import LOOP_STEP, REMOTE_STEP, WAFER_STEP, Profiler
from tests.address.loopback import Loopback, loopback
from tests.address.test_service import SPEC
from tests.runtime.test_session import WEIGHT, Compiler, batch


def test_times_of_a_session_at_an_address_are_on_this_clock(monkeypatch):
    monkeypatch.setattr("cerebras_tf.address.profile._MAX_PART", 3)
    wafer, _ = loopback()
    store, profiler = wafer.store([SPEC]), Profiler()
    write(store, "w", WEIGHT)
    session = wafer.session(store, True, profiler)
    client = SessionClient(session, Compiler())
    client.run({"x": batch(8)})
    session.start_profile()
    start = time.perf_counter()
    for _ in range(2):
        client.run({"x": batch(8)})
    end = time.perf_counter()
    session.take_profile(profiler)
    assert recording() is None and profiler.timings and profiler.library
    assert {timing.direction for timing in profiler.timings} >= {"forward", "update"}
    for span in profiler.timeline.spans:
        assert start - 0.01 < span.start <= span.end < end + 0.01
        assert profiler.timeline.threads[span.thread].endswith("at cs_ip")
    assert [s.kind for s in profiler.timeline.spans].count(REMOTE_STEP) == 2
    there = sum(s.end - s.start for s in profiler.timeline.spans if s.kind == REMOTE_STEP)
    profiler.timeline.add(WAFER_STEP, "step", 0.0, there + 1.0)
    profiler.timeline.add(LOOP_STEP, "step", 0.0, there + 1.0)
    speeds = Speeds(1e12, 1e10)
    assert bounds_of(profiler, 2, speeds).network == pytest.approx(0.5)
    assert "network" in tables(profiler, 2, speeds, profiler.library)
    session.take_profile(profiler)  # nothing more
    assert [s.kind for s in profiler.timeline.spans].count(REMOTE_STEP) == 2
    with pytest.raises(DataError, match="a session that is profiled"):
        wafer.session(store, True).start_profile()


def test_steps_after_a_profile_that_is_full_run_without_it(monkeypatch):
    monkeypatch.setattr("cerebras_tf.runtime.profiler.MAX_CALLS", 1)
    wafer, _ = loopback()
    store, profiler = wafer.store([SPEC]), Profiler()
    write(store, "w", WEIGHT)
    session = wafer.session(store, True, profiler)
    client = SessionClient(session, Compiler())
    client.run({"x": batch(8)})
    session.start_profile()
    assert not profiler.is_full
    for _ in range(3):
        client.run({"x": batch(8)})
        assert profiler.is_full
    session.take_profile(profiler)
    assert [s.kind for s in profiler.timeline.spans].count(REMOTE_STEP) == 1


def test_a_clock_that_is_ahead_is_found(monkeypatch):
    link = Loopback()
    here = time.perf_counter_ns
    monkeypatch.setattr("time.perf_counter_ns", lambda: here() + 5 * 10**9)
    assert clock_offset(link.call) == pytest.approx(5, abs=0.05)
