"""Spreads the rows of a compiled kernel over the cores.

Compiled kernels share a board that threads look at without Python (compiled_board.py). Functions of
Python, which release the GIL for what they call, come through a queue; unlike an OpenMP team the
threads sleep where nothing comes for a moment, and leave the cores to others. The thread that calls
spins for a moment once it has no more to do, for another one's last part is about to end then, and
being woken takes longer.
"""

from __future__ import annotations

import _thread
import itertools
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Optional

import numpy as np

from cerebras_tf import environment
from cerebras_tf.kernels.compiled_work_queue import (
    ASLEEP,
    MOST_CHUNKS,
    QUEUED,
    Board,
    changes_within,
    is_compiled,
    run_alone,
)
from cerebras_tf.kernels.timeline import PART, recording

# Elements of a simple kernel below which waking a thread (30-60 us) costs more than it gives.
GRAIN = 1 << 16
# Looks at a job before sleeping until it is done: as long as being woken takes.
_TURNS = 3000


def _cores() -> int:
    return environment.THREADS.get() or len(os.sched_getaffinity(0))


_END = object()


class _Job:
    """Chunks of one call, taken by whichever thread is free."""

    __slots__ = ("_asleep", "_ended", "_flags", "_next", "chunks", "error", "run")

    def __init__(self, run: Callable[[int], Any], chunks: int) -> None:
        self.run = run
        self.chunks = chunks
        self.error: Optional[BaseException] = None
        # next() of these is atomic under the GIL.
        self._next = iter(range(chunks))
        self._ended = itertools.count(1)
        self._flags = np.zeros(1, np.int64)
        self._asleep = _thread.allocate_lock()
        self._asleep.acquire()

    def work(self) -> None:
        """Runs chunks until none is left."""
        for chunk in self._next:
            timeline = recording()
            start = time.perf_counter() if timeline else 0.0
            try:
                self.run(chunk)
            except BaseException as error:  # handed to the caller
                self.error = error
            if timeline:
                end = time.perf_counter()
                timeline.add(PART, timeline.current, start, end, part=chunk, parts=self.chunks)
            if next(self._ended) == self.chunks:
                self._flags[0] = 1
                self._asleep.release()

    def wait(self) -> None:
        """Returns when all chunks have run; the thread that made the job calls it, once."""
        if not changes_within(self._flags.ctypes.data, _TURNS):
            self._asleep.acquire()


class _Pool:
    """Threads that share jobs with the thread that calls; asleep where nothing comes."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.board = Board()
        self.queue: SimpleQueue[Any] = SimpleQueue()  # of jobs, None to wake, _END to end
        self._idents = [0] * threads
        for number in range(1, threads):
            threading.Thread(
                target=self._serve,
                args=(number,),
                name=f"cerebras_tf-kernels-{number - 1}",
                daemon=True,
            ).start()

    def _serve(self, number: int) -> None:
        self._idents[number] = threading.get_ident()
        while True:
            asleep = self.board.serve(number)
            try:
                job = self.queue.get(block=asleep)
            except Empty:  # another thread took it
                continue
            if asleep:
                self.board.change(ASLEEP, -1)
            if job is _END:
                return
            if job is not None:
                self.board.change(QUEUED, -1)
                job.work()
            del job

    def end(self) -> None:
        """Ends its threads, once they are asleep; who uses it still works alone."""
        for _ in range(self.threads - 1):
            self.queue.put(_END)

    def run(self, run: Callable[[int], Any], chunks: int) -> None:
        """run(0) ... run(chunks - 1), in any order, this thread taking part."""
        job = _Job(run, chunks)
        helpers = min(self.threads, chunks) - 1
        for _ in range(helpers):
            self.queue.put(job)
        self.board.change(QUEUED, helpers)
        job.work()
        job.wait()
        if job.error is not None:
            raise job.error

    def spread(
        self, kernel: Any, rows: int, chunks: int, args: tuple[Any, ...], with_thread: bool
    ) -> bool:
        """Runs a compiled kernel on all rows, in so many chunks, this thread taking part.

        Returns:
            Whether it did; not where the board has another thread's job.
        """
        for _ in range(min(self.board.word(ASLEEP), chunks - 1) - self.queue.qsize()):
            self.queue.put(None)
        timeline = recording()
        if timeline is None:
            return self.board.run(kernel, rows, chunks, args, with_thread)
        self.board.keep_times(True)
        try:
            ran = self.board.run(kernel, rows, chunks, args, with_thread)
        finally:
            self.board.keep_times(False)
        if ran:
            self._idents[0] = threading.get_ident()
            for part, (thread, start, end) in enumerate(self.board.times(chunks)):
                ident, name = self._idents[thread], timeline.current
                timeline.add_of(ident, PART, name, start, end, part=part, parts=chunks)
        return ran


_pool: Optional[_Pool] = None
_start = threading.Lock()
_wanted: Optional[int] = None  # threads, where somebody has chosen


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _start
    _pool = None
    _start = threading.Lock()


os.register_at_fork(after_in_child=_forget_pool)


def _shared_pool() -> _Pool:
    global _pool
    if _pool is None:
        with _start:
            if _pool is None:
                _pool = _Pool(_wanted or _cores())
    return _pool


def use_threads(count: Optional[int]) -> None:
    """Lets so many threads share kernels from now on; None: as many as the environment says.

    Raises:
        ConfigError: the environment names no number of threads.
    """
    global _pool, _wanted
    with _start:
        wanted, _wanted = count or _cores(), count
        if _pool is None or _pool.threads != wanted:
            before, _pool = _pool, _Pool(wanted)
            if before is not None:
                before.end()


def threads() -> int:
    """Threads that share a call's work."""
    return _shared_pool().threads


def split(rows: int, work: int, grain: int = GRAIN) -> int:
    """Number of chunks for `rows` rows of `work` elements in all: enough for balance, not more."""
    threads = _shared_pool().threads
    if threads == 1 or work < 2 * grain:
        return 1
    return max(1, min(rows, 2 * threads, work // grain))


def for_rows(
    kernel: Callable[..., Any], rows: int, work: int, *args: Any, grain: int = GRAIN
) -> None:
    """kernel(start, stop, *args) on ranges that cover [0, rows).

    Args:
        kernel: releases the GIL; calls for different rows must not touch the same memory.
        rows: number of independent rows.
        work: elements in all, to judge whether threads pay.
        args: handed on.
        grain: least elements of a chunk.
    """
    if rows > 0:
        spread(kernel, rows, split(rows, work, grain), *args)


def spread(kernel: Callable[..., Any], rows: int, chunks: int, *args: Any, rooms: int = 0) -> None:
    """kernel(start, stop, *args) on so many ranges of equal length that cover [0, rows).

    Args:
        kernel: as for `for_rows`.
        rows: number of independent rows, at least 1.
        chunks: number of ranges; 1: this thread runs the kernel.
        args: handed on.
        rooms: where it is not 0, the kernel takes the number of its thread behind start and stop;
            there is room for threads of numbers less than this. One of Python's runs alone then.
    """
    pool = None if chunks <= 1 else _shared_pool()
    if not is_compiled(kernel):
        if pool is None or rooms:
            kernel(0, rows, *((0, *args) if rooms else args))
        else:
            bounds = [rows * chunk // chunks for chunk in range(chunks + 1)]
            pool.run(lambda chunk: kernel(bounds[chunk], bounds[chunk + 1], *args), chunks)
        return
    given = args, rooms > 0
    if pool is not None and rooms and pool.threads > rooms:
        pool = None  # other threads have been chosen since rooms were taken
    if pool is None or not pool.spread(kernel, rows, min(chunks, MOST_CHUNKS), *given):
        run_alone(kernel, rows, *given)


def chunks_of(parts: int, work: int) -> int:
    """1 where `work` elements do not make threads worth while, else the number of parts."""
    return 1 if work < 2 * GRAIN or _shared_pool().threads == 1 else parts


def for_chunks(run: Callable[[int], Any], chunks: int, work: int) -> None:
    """run(0) ... run(chunks - 1), on threads where `work` elements make that worth while."""
    if chunks_of(chunks, work) <= 1:
        for chunk in range(chunks):
            run(chunk)
        return
    _shared_pool().run(run, chunks)
