"""Scratch memory is a stack a thread; its peak is the most that all threads took."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from cerebras_tf.kernels import scratch
from cerebras_tf.kernels.scratch import (
    ALIGNMENT_BYTES,
    aligned,
    borrow,
    count_external,
    peak_bytes,
    reset_peak,
    round_up,
)


@pytest.fixture
def fresh(monkeypatch):
    """Stacks of this test alone: none has taken anything yet."""
    for name, empty in (("_stacks_by_thread", {}), ("_free", []), ("_stacks", [])):
        monkeypatch.setattr(scratch, name, empty)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 5), np.float32), ((), np.float64), ((0, 4), np.int64), ((7,), bool)]
)
def test_arrays_have_the_shape_and_dtype_asked_for(fresh, shape, dtype):
    with borrow(shape, dtype) as array:
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        array[...] = 1
        assert np.all(array == 1)


def test_arrays_start_on_cache_lines(fresh):
    with borrow((3,), np.uint8) as first, borrow((5,), np.uint8) as second:
        assert [address(a) % ALIGNMENT_BYTES for a in (first, second)] == [0, 0]
    assert address(aligned(1)) % ALIGNMENT_BYTES == 0


def test_what_is_taken_twice_does_not_overlap(fresh):
    with borrow((8, 1 << 10)):
        pass
    with borrow((100,)) as outer:
        outer[:] = 1
        with borrow((100,)) as inner:
            inner[:] = 2
            assert not np.shares_memory(outer, inner)
        assert np.all(outer == 1)


def test_memory_that_was_given_back_is_taken_again(fresh):
    with borrow((1000,)) as first:
        place = address(first)
    with borrow((10,)) as small, borrow((10,)) as after:
        assert address(small) == place
        assert address(after) == place + round_up(40)


def test_memory_may_grow_while_some_of_it_is_taken(fresh):
    with borrow((10,)) as small:
        small[:] = 7
        with borrow((1 << 20,)) as large:
            large[:] = 0
            assert np.all(small == 7)
        small[:] = 8
        with borrow((1 << 20,)) as large:
            large[:] = 0
            assert np.all(small == 8)


def test_memory_is_given_back_when_a_kernel_raises(fresh):
    with pytest.raises(ValueError), borrow((1000,)):
        raise ValueError
    reset_peak()
    assert peak_bytes() == 0


def test_the_mark_is_the_most_taken_at_once(fresh):
    with borrow((100,), np.uint8), borrow((200,), np.uint8):
        pass
    with borrow((50,), np.uint8):
        pass
    assert peak_bytes() == round_up(100) + round_up(200) == 3 * ALIGNMENT_BYTES
    reset_peak()
    assert peak_bytes() == 0


def test_a_mark_that_is_forgotten_keeps_what_is_taken_now(fresh):
    with borrow((100,), np.uint8):
        with borrow((5000,), np.uint8):
            pass
        reset_peak()
        assert peak_bytes() == round_up(100)


def test_memory_from_elsewhere_counts_on_top_of_what_is_taken(fresh):
    with borrow((128,), np.uint8):
        count_external(1000)
    count_external(500)
    assert peak_bytes() == 128 + 1000


def run_in_threads(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_marks_of_all_threads_add_up(fresh):
    taken = threading.Barrier(3)

    def work(size):
        with borrow((size,), np.uint8):
            taken.wait(timeout=30)  # all hold theirs now

    run_in_threads(*(lambda size=size: work(size) for size in (128, 256, 512)))
    assert peak_bytes() == 128 + 256 + 512
    reset_peak()
    assert peak_bytes() == 0


def test_a_thread_takes_the_memory_that_an_ended_one_left(fresh):
    places = []

    def work():
        with borrow((1000,)) as array:
            places.append(address(array))

    for _ in range(5):
        run_in_threads(work)
    assert len(set(places)) == 1 and len(scratch._stacks) == 1


def test_a_child_that_is_forked_while_another_thread_takes_memory_takes_its_own(fresh):
    with scratch._lock:  # as a thread does that the child will not have
        child = os.fork()
        if not child:
            signal.alarm(10)
            with scratch.borrow((4,)):
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_have_memory_of_their_own(fresh):
    taken = threading.Barrier(2)
    places = []

    def work():
        with borrow((64,)) as array:
            taken.wait(timeout=30)  # both hold theirs now
            places.append((address(array), address(array) + array.nbytes))

    run_in_threads(work, work)
    (_, end), (start, _) = sorted(places)
    assert end <= start
