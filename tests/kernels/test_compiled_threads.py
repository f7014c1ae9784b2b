"""Parallel loops: every row once on any number of threads, errors reach the caller, forks work."""

from __future__ import annotations

import multiprocessing
import threading
import time

import numpy as np
import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import compiled_threads, compiled_work_queue
from cerebras_tf.kernels.compiled_jit import CACHE_FOLDER, jit
from cerebras_tf.kernels.compiled_threads import parallel_chunks, parallel_for, parallel_tasks
from cerebras_tf.kernels.compiled_work_queue import PYTHON_JOBS, SLEEPING, is_compiled
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
    parallel_chunks(add_to_rows, rows, chunks, seen, 2)
    assert (seen == 2).all()


def test_consecutive_jobs_do_not_mix(pool):
    random = np.random.default_rng(0)
    for turn in range(3000):
        seen = np.zeros(random.integers(1, 300), np.int64)
        parallel_chunks(add_to_rows, len(seen), int(random.integers(2, 20)), seen, turn)
        assert (seen == turn).all()
        if turn % 1000 == 0:
            time.sleep(0.01)  # the others fall asleep


def test_other_threads_take_part_asleep_or_not(pool):
    for _ in range(2):
        deadline, found = time.monotonic() + 60, set()
        while len(found) < 2 and time.monotonic() < deadline:
            rows = np.zeros(64, np.int64)
            parallel_chunks(note_threads, 64, 32, rows, 200_000, workspaces=THREADS)
            found.update(rows.tolist())
        assert found <= set(range(1, THREADS + 1)) and len(found) >= 2
        while pool.work_queue.counter(SLEEPING) < THREADS - 1:
            assert time.monotonic() < deadline, "threads must fall asleep where nothing comes"
            time.sleep(0.01)


def test_an_error_in_a_compiled_kernel_is_raised_and_the_pool_goes_on(pool):
    rows = np.zeros(100, np.int64)
    with pytest.raises(RuntimeError, match="kernel refuse_one_row: must not raise. Received: "):
        parallel_chunks(refuse_one_row, 100, 10, rows, 57)
    parallel_chunks(add_to_rows, 100, 10, rows, 1)
    assert rows[0] == 2


def test_functions_of_python_and_compiled_ones_take_turns(pool):
    seen = np.zeros(50, np.int64)

    def in_python(start, stop, step):
        seen[start:stop] += step

    for _ in range(200):
        parallel_chunks(in_python, 50, 8, 1)
        parallel_chunks(add_to_rows, 50, 8, seen, 1)
    assert (seen == 400).all()
    deadline = time.monotonic() + 60
    while pool.work_queue.counter(SLEEPING) < THREADS - 1 or not pool.queue.empty():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert pool.work_queue.counter(PYTHON_JOBS) == 0


def test_several_callers_at_once_do_not_wait_for_each_other(pool):
    totals = [np.zeros(5000, np.int64) for _ in range(4)]

    def call(total):
        for _ in range(200):
            parallel_chunks(add_to_rows, 5000, 8, total, 1)

    callers = [threading.Thread(target=call, args=(total,)) for total in totals]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((total == 200).all() for total in totals)


def _in_child(queue):
    seen = np.zeros(100, np.int64)
    parallel_chunks(add_to_rows, 100, 8, seen, 3)
    queue.put(seen.tolist())


def test_a_forked_process_has_a_board_of_its_own(pool):
    parallel_chunks(add_to_rows, 100, 8, np.zeros(100, np.int64), 3)
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
        parallel_chunks(note_threads, len(rows), 32, rows, 200_000, workspaces=THREADS)
    finally:
        record(None)
    return timeline


def test_chunks_are_recorded_with_their_threads(pool):
    deadline, rows = time.monotonic() + 60, np.zeros(64, np.int64)
    while len(set(rows.tolist())) < 2:  # threads of a new pool begin late
        assert time.monotonic() < deadline
        timeline = recorded(rows)
    chunks = [span for span in timeline.spans if span.kind == PART]
    assert sorted(span.details["part"] for span in chunks) == list(range(32))
    assert all(span.start <= span.end for span in chunks)
    others = {timeline.threads[s.thread] for s in chunks if s.thread != threading.get_ident()}
    assert others and all(name.startswith("cerebras_tf-kernels") for name in others)
    before = len(timeline.spans)
    parallel_chunks(note_threads, 64, 32, rows, 1, workspaces=THREADS)
    assert len(timeline.spans) == before


def test_names_of_kernels_are_unique():
    @jit(cache=False)
    def local(start, stop):
        pass

    assert is_compiled(add_to_rows) and not is_compiled(local) and not is_compiled(print)
    twin = jit(cache=False)(add_to_rows.py_func)
    compiled_work_queue._runner(add_to_rows, False)
    with pytest.raises(RuntimeError, match="names must be unique"):
        compiled_work_queue._runner(twin, False)


def test_what_spreads_a_kernel_is_kept_under_a_name_of_its_own():
    runners = [compiled_work_queue._runner(k, False) for k in (add_to_rows, refuse_one_row)]
    runners.append(compiled_work_queue._runner(add_to_rows, True))
    assert len({runner.py_func.__qualname__ for runner in runners}) == 3
    if CACHE_FOLDER is not None:
        assert len({runner._cache._impl.filename_base for runner in runners}) == 3


def test_a_kernel_runs_alone_where_there_are_fewer_rooms_than_threads(pool):
    rows = np.zeros(64, np.int64)
    parallel_chunks(note_threads, 64, 32, rows, 100_000, workspaces=THREADS - 1)
    assert (rows == 1).all()


def test_a_caller_that_finds_the_queue_busy_runs_its_job_itself(pool, monkeypatch):
    monkeypatch.setattr(pool.work_queue, "run", lambda *given: False)
    seen = np.zeros(50, np.int64)
    parallel_chunks(add_to_rows, 50, 8, seen, 5)
    assert (seen == 5).all()
    parallel_chunks(note_threads, 50, 8, seen, 1, workspaces=THREADS)
    assert (seen == 1).all()


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(3))


def test_small_work_stays_on_the_calling_thread(three_threads):
    names = []
    parallel_for(lambda start, stop: names.append(threading.get_ident()), 100, 1000)
    assert names == [threading.get_ident()]


def test_an_error_in_a_chunk_reaches_the_caller_and_the_pool_goes_on(three_threads):
    def fail(chunk):
        raise ValueError(f"chunk {chunk}")

    with pytest.raises(ValueError, match="chunk"):
        parallel_tasks(fail, 5, 10**7)
    done = []
    parallel_tasks(done.append, 5, 10**7)
    assert sorted(done) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1.5", "1025", "100000"])
def test_a_number_of_threads_that_is_none_is_refused(text, monkeypatch):
    monkeypatch.setenv("CEREBRAS_TF_THREADS", text)
    with pytest.raises(ConfigError, match=f"CEREBRAS_TF_THREADS: must be .* Received: '{text}'"):
        compiled_threads._default_num_threads()


def test_a_number_of_threads_may_be_chosen_again(monkeypatch):
    monkeypatch.setattr(compiled_threads, "_pool", None)
    monkeypatch.setenv("CEREBRAS_TF_THREADS", "2")
    for count, threads in ((3, 3), (1, 1), (None, 2), (3, 3)):
        compiled_threads.set_num_threads(count)
        assert compiled_threads.num_threads() == threads
        done = []
        parallel_tasks(done.append, 7, 10**7)
        assert sorted(done) == list(range(7))
    kept = compiled_threads._pool
    compiled_threads.set_num_threads(3)
    assert compiled_threads._pool is kept
    compiled_threads.set_num_threads(None)
    kept.run(done.append, 4)  # by who still has it
    assert sorted(done[7:]) == [0, 1, 2, 3]
