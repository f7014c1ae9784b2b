"""Compiled kernels on several threads: every row once, whoever takes part, and errors are told."""

from __future__ import annotations

import multiprocessing
import threading
import time

import numpy as np
import pytest

pytest.importorskip("numba")

from cerebras_tf.kernels import compiled_threads, compiled_work_queue
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER, jit
from cerebras_tf.kernels.compiled_threads import spread
from cerebras_tf.kernels.compiled_work_queue import ASLEEP, QUEUED, is_compiled
from cerebras_tf.kernels.timeline import PART, Timeline, record

THREADS = 4


@jit(cache=False)
def add_to_rows(start, stop, rows, step):
    for i in range(start, stop):
        rows[i] += step


@jit(cache=False)
def note_threads(start, stop, thread, rows, turns):
    for i in range(start, stop):
        x = i
        for _ in range(turns):  # a while, so that others come
            x = x * 6364136223846793005 + 1442695040888963407
        rows[i] = thread + 1 if x != 12345 else 0


@jit(cache=False)
def refuse_one_row(start, stop, rows, row):
    for i in range(start, stop):
        if i == row:
            raise ValueError("this one")
        rows[i] += 1


@pytest.fixture
def pool(monkeypatch):
    made = compiled_threads._Pool(THREADS)
    monkeypatch.setattr(compiled_threads, "_pool", made)
    return made


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("chunks", [1, 2, 8, 5000])
def test_every_row_is_run_once(pool, rows, chunks):
    seen = np.zeros(rows, np.int64)
    spread(add_to_rows, rows, chunks, seen, 2)
    assert (seen == 2).all()


def test_jobs_behind_each_other_and_of_other_sizes_do_not_mix(pool):
    random = np.random.default_rng(0)
    for turn in range(3000):
        seen = np.zeros(random.integers(1, 300), np.int64)
        spread(add_to_rows, len(seen), int(random.integers(2, 20)), seen, turn)
        assert (seen == turn).all()
        if turn % 1000 == 0:
            time.sleep(0.01)  # the others fall asleep


def test_other_threads_take_part_asleep_or_not(pool):
    for _ in range(2):
        deadline, found = time.monotonic() + 60, set()
        while len(found) < 2 and time.monotonic() < deadline:
            rows = np.zeros(64, np.int64)
            spread(note_threads, 64, 32, rows, 200_000, rooms=THREADS)
            found.update(rows.tolist())
        assert found <= set(range(1, THREADS + 1)) and len(found) >= 2
        while pool.board.word(ASLEEP) < THREADS - 1:
            assert time.monotonic() < deadline, "threads must fall asleep where nothing comes"
            time.sleep(0.01)


def test_an_error_of_a_kernel_is_told_and_the_pool_goes_on(pool):
    rows = np.zeros(100, np.int64)
    with pytest.raises(RuntimeError, match="kernel refuse_one_row: must not raise. Received: "):
        spread(refuse_one_row, 100, 10, rows, 57)
    spread(add_to_rows, 100, 10, rows, 1)
    assert rows[0] == 2


def test_functions_of_python_and_compiled_ones_take_turns(pool):
    seen = np.zeros(50, np.int64)

    def in_python(start, stop, step):
        seen[start:stop] += step

    for _ in range(200):
        spread(in_python, 50, 8, 1)
        spread(add_to_rows, 50, 8, seen, 1)
    assert (seen == 400).all()
    deadline = time.monotonic() + 60
    while pool.board.word(ASLEEP) < THREADS - 1 or not pool.queue.empty():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert pool.board.word(QUEUED) == 0


def test_several_callers_at_once_do_not_wait_for_each_other(pool):
    totals = [np.zeros(5000, np.int64) for _ in range(4)]

    def call(total):
        for _ in range(200):
            spread(add_to_rows, 5000, 8, total, 1)

    callers = [threading.Thread(target=call, args=(total,)) for total in totals]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((total == 200).all() for total in totals)


def _in_child(queue):
    seen = np.zeros(100, np.int64)
    spread(add_to_rows, 100, 8, seen, 3)
    queue.put(seen.tolist())


def test_a_forked_process_has_a_board_of_its_own(pool):
    spread(add_to_rows, 100, 8, np.zeros(100, np.int64), 3)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get() == [3] * 100
    child.join()
    assert child.exitcode == 0


def recorded(rows):
    """The timeline of a kernel that notes its threads in rows."""
    timeline = Timeline()
    record(timeline)
    try:
        spread(note_threads, len(rows), 32, rows, 200_000, rooms=THREADS)
    finally:
        record(None)
    return timeline


def test_parts_are_told_with_their_threads_while_somebody_records(pool):
    deadline, rows = time.monotonic() + 60, np.zeros(64, np.int64)
    while len(set(rows.tolist())) < 2:  # threads of a new pool begin late
        assert time.monotonic() < deadline
        timeline = recorded(rows)
    parts = [span for span in timeline.spans if span.kind == PART]
    assert sorted(span.details["part"] for span in parts) == list(range(32))
    assert all(span.start <= span.end for span in parts)
    others = {timeline.threads[s.thread] for s in parts if s.thread != threading.get_ident()}
    assert others and all(name.startswith("cerebras_tf-kernels") for name in others)
    before = len(timeline.spans)
    spread(note_threads, 64, 32, rows, 1, rooms=THREADS)
    assert len(timeline.spans) == before


def test_kernels_are_told_apart_by_their_names():
    @jit(cache=False)
    def local(start, stop):
        pass

    assert is_compiled(add_to_rows) and not is_compiled(local) and not is_compiled(print)
    twin = jit(cache=False)(add_to_rows.py_func)
    compiled_work_queue._runner(add_to_rows, False)
    with pytest.raises(RuntimeError, match="two may not share a name"):
        compiled_work_queue._runner(twin, False)


def test_what_spreads_a_kernel_is_kept_under_a_name_of_its_own():
    runners = [compiled_work_queue._runner(k, False) for k in (add_to_rows, refuse_one_row)]
    runners.append(compiled_work_queue._runner(add_to_rows, True))
    assert len({runner.py_func.__qualname__ for runner in runners}) == 3
    if CACHE_FOLDER is not None:
        assert len({runner._cache._impl.filename_base for runner in runners}) == 3


def test_a_kernel_runs_alone_where_there_are_fewer_rooms_than_threads(pool):
    rows = np.zeros(64, np.int64)
    spread(note_threads, 64, 32, rows, 100_000, rooms=THREADS - 1)
    assert (rows == 1).all()


def test_who_finds_the_board_busy_works_alone(pool, monkeypatch):
    monkeypatch.setattr(pool.board, "run", lambda *given: False)
    seen = np.zeros(50, np.int64)
    spread(add_to_rows, 50, 8, seen, 5)
    assert (seen == 5).all()
    spread(note_threads, 50, 8, seen, 1, rooms=THREADS)
    assert (seen == 1).all()
