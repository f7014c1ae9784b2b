"""Parallel loops over the rows of a kernel, on a pool of threads.

Compiled kernels go through a work queue without the GIL (compiled_work_queue.py). Python functions,
which release the GIL in what they call, go through a Python queue. Unlike an OpenMP team, idle
threads sleep after a moment and leave the cores to other programs. The calling thread takes part;
it spins for a moment at the end, because the last chunk usually ends sooner than a wake-up takes.
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
    MAX_CHUNKS,
    PYTHON_JOBS,
    SLEEPING,
    WorkQueue,
    is_compiled,
    run_on_this_thread,
    spin_until_set,
)
from cerebras_tf.kernels.timeline import PART, recording

# Elements of a simple kernel below which waking a thread (30-60 us) costs more than it gains.
GRAIN_SIZE = 1 << 16
# Reads of a job's flag before sleeping until it is done: about the time of a wake-up.
_SPINS = 3000


def _default_num_threads() -> int:
    return environment.THREADS.get() or len(os.sched_getaffinity(0))


_END = object()


class _Job:
    """Chunks of one Python call; idle threads take them one by one."""

    __slots__ = ("_done", "_ended", "_flags", "_next", "chunks", "error", "run")

    def __init__(self, run: Callable[[int], Any], chunks: int) -> None:
        self.run = run
        self.chunks = chunks
        self.error: Optional[BaseException] = None
        # next() of these is atomic under the GIL.
        self._next = iter(range(chunks))
        self._ended = itertools.count(1)
        self._flags = np.zeros(1, np.int64)
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def work(self) -> None:
        """Runs chunks until none is left."""
        for chunk in self._next:
            timeline = recording()
            start = time.perf_counter() if timeline else 0.0
            try:
                self.run(chunk)
            except BaseException as error:  # raised in the calling thread
                self.error = error
            if timeline:
                end = time.perf_counter()
                timeline.add(PART, timeline.current, start, end, part=chunk, parts=self.chunks)
            if next(self._ended) == self.chunks:
                self._flags[0] = 1
                self._done.release()

    def wait(self) -> None:
        """Returns when all chunks have run; called once, by the thread that made the job."""
        if not spin_until_set(self._flags.ctypes.data, _SPINS):
            self._done.acquire()


class _Pool:
    """Worker threads, which share jobs with the calling thread."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.work_queue = WorkQueue()
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
            asleep = self.work_queue.serve(number)
            try:
                job = self.queue.get(block=asleep)
            except Empty:  # another thread took it
                continue
            if asleep:
                self.work_queue.increment(SLEEPING, -1)
            if job is _END:
                return
            if job is not None:
                self.work_queue.increment(PYTHON_JOBS, -1)
                job.work()
            del job

    def end(self) -> None:
        """Ends the worker threads once they sleep; later jobs run on the calling thread."""
        for _ in range(self.threads - 1):
            self.queue.put(_END)

    def run(self, run: Callable[[int], Any], chunks: int) -> None:
        """run(0) ... run(chunks - 1), in any order."""
        job = _Job(run, chunks)
        helpers = min(self.threads, chunks) - 1
        for _ in range(helpers):
            self.queue.put(job)
        self.work_queue.increment(PYTHON_JOBS, helpers)
        job.work()
        job.wait()
        if job.error is not None:
            raise job.error

    def run_compiled(
        self, kernel: Any, rows: int, chunks: int, args: tuple[Any, ...], with_thread: bool
    ) -> bool:
        """Runs a compiled kernel on all rows; returns False if the work queue is busy."""
        for _ in range(min(self.work_queue.counter(SLEEPING), chunks - 1) - self.queue.qsize()):
            self.queue.put(None)
        timeline = recording()
        if timeline is None:
            return self.work_queue.run(kernel, rows, chunks, args, with_thread)
        self.work_queue.record_times(True)
        try:
            ran = self.work_queue.run(kernel, rows, chunks, args, with_thread)
        finally:
            self.work_queue.record_times(False)
        if ran:
            self._idents[0] = threading.get_ident()
            for part, (thread, start, end) in enumerate(self.work_queue.times(chunks)):
                ident, name = self._idents[thread], timeline.current
                timeline.add_of(ident, PART, name, start, end, part=part, parts=chunks)
        return ran


_pool: Optional[_Pool] = None
_lock = threading.Lock()
_wanted: Optional[int] = None  # as given to set_num_threads


def _reset_after_fork() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _lock
    _pool = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


def _shared_pool() -> _Pool:
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = _Pool(_wanted or _default_num_threads())
    return _pool


def set_num_threads(count: Optional[int]) -> None:
    """Sets the number of threads of kernels; None: $CEREBRAS_TF_THREADS, or one per core.

    Raises:
        ConfigError: the environment variable is not a number of threads.
    """
    global _pool, _wanted
    with _lock:
        wanted, _wanted = count or _default_num_threads(), count
        if _pool is None or _pool.threads != wanted:
            before, _pool = _pool, _Pool(wanted)
            if before is not None:
                before.end()


def num_threads() -> int:
    """Number of threads that run a kernel."""
    return _shared_pool().threads


def chunk_count(rows: int, work: int, grain: int = GRAIN_SIZE) -> int:
    """Number of chunks for `rows` rows of `work` elements in all, enough to balance the load."""
    threads = _shared_pool().threads
    if threads == 1 or work < 2 * grain:
        return 1
    return max(1, min(rows, 2 * threads, work // grain))


def parallel_for(
    kernel: Callable[..., Any], rows: int, work: int, *args: Any, grain: int = GRAIN_SIZE
) -> None:
    """kernel(start, stop, *args) on ranges that cover [0, rows), in parallel if it pays off.

    Args:
        kernel: releases the GIL; calls for different rows must not write the same memory.
    """
    if rows > 0:
        parallel_chunks(kernel, rows, chunk_count(rows, work, grain), *args)


def parallel_chunks(
    kernel: Callable[..., Any], rows: int, chunks: int, *args: Any, workspaces: int = 0
) -> None:
    """kernel(start, stop, *args) on so many ranges of equal length that cover [0, rows).

    Args:
        kernel: as for `parallel_for`.
        rows: at least 1.
        workspaces: if not 0, the kernel takes the number of its thread, less than `workspaces`,
            after start and stop. A Python kernel then runs on the calling thread.
    """
    pool = None if chunks <= 1 else _shared_pool()
    if not is_compiled(kernel):
        if pool is None or workspaces:
            kernel(0, rows, *((0, *args) if workspaces else args))
        else:
            bounds = [rows * chunk // chunks for chunk in range(chunks + 1)]
            pool.run(lambda chunk: kernel(bounds[chunk], bounds[chunk + 1], *args), chunks)
        return
    given = args, workspaces > 0
    if pool is not None and workspaces and pool.threads > workspaces:
        pool = None  # set_num_threads was called since the workspaces were allocated
    if pool is None or not pool.run_compiled(kernel, rows, min(chunks, MAX_CHUNKS), *given):
        run_on_this_thread(kernel, rows, *given)


def chunks_or_one(chunks: int, work: int) -> int:
    """`chunks`, or 1 if `work` elements are too few for several threads."""
    return 1 if work < 2 * GRAIN_SIZE or _shared_pool().threads == 1 else chunks


def parallel_tasks(run: Callable[[int], Any], count: int, work: int) -> None:
    """run(0) ... run(count - 1), in parallel if `work` elements are enough for it."""
    if chunks_or_one(count, work) <= 1:
        for task in range(count):
            run(task)
        return
    _shared_pool().run(run, count)
