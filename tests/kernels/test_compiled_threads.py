"""The thread pool: every row once, errors reach the caller, forks and nesting do not hang."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest

pytest.importorskip("numba")

from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels import compiled_threads
from cerebras_tf.kernels.compiled_threads import for_chunks, for_rows


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr(compiled_threads, "_pool", compiled_threads._Pool(3))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 1000])
def test_every_row_is_run_once(three_threads, rows):
    seen = np.zeros(rows, int)

    def kernel(start, stop, step):
        seen[start:stop] += step

    for_rows(kernel, rows, 10**7, 2)
    assert (seen == 2).all()


def test_small_work_stays_on_the_calling_thread(three_threads):
    names = []
    for_rows(lambda start, stop: names.append(threading.get_ident()), 100, 1000)
    assert names == [threading.get_ident()]


def test_an_error_in_a_chunk_reaches_the_caller_and_the_pool_goes_on(three_threads):
    def fail(chunk):
        raise ValueError(f"chunk {chunk}")

    with pytest.raises(ValueError, match="chunk"):
        for_chunks(fail, 5, 10**7)
    done = []
    for_chunks(done.append, 5, 10**7)
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_several_threads_may_call_at_once(three_threads):
    totals = [np.zeros(50, int) for _ in range(4)]

    def call(total):
        def kernel(start, stop):
            total[start:stop] += 1

        for _ in range(50):
            for_rows(kernel, 50, 10**7)

    callers = [threading.Thread(target=call, args=(total,)) for total in totals]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((total == 50).all() for total in totals)


def _in_child(queue):
    done = []
    for_chunks(done.append, 4, 10**7)
    queue.put(sorted(done))


def test_a_forked_process_makes_its_own_threads(three_threads):
    for_chunks(lambda chunk: None, 4, 10**7)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get() == [0, 1, 2, 3]
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1.5", "1025", "100000"])
def test_a_number_of_threads_that_is_none_is_refused(text, monkeypatch):
    monkeypatch.setenv("CEREBRAS_TF_THREADS", text)
    with pytest.raises(ConfigError, match=f"CEREBRAS_TF_THREADS: must be .* Received: '{text}'"):
        compiled_threads._cores()


def test_a_number_of_threads_may_be_chosen_again(monkeypatch):
    monkeypatch.setattr(compiled_threads, "_pool", None)
    monkeypatch.setenv("CEREBRAS_TF_THREADS", "2")
    for count, threads in ((3, 3), (1, 1), (None, 2), (3, 3)):
        compiled_threads.use_threads(count)
        assert compiled_threads.threads() == threads
        done = []
        for_chunks(done.append, 7, 10**7)
        assert sorted(done) == list(range(7))
    kept = compiled_threads._pool
    compiled_threads.use_threads(3)
    assert compiled_threads._pool is kept
    compiled_threads.use_threads(None)
    kept.run(done.append, 4)  # by who still has it
    assert sorted(done[7:]) == [0, 1, 2, 3]
