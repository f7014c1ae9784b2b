"""Spreads the rows of a compiled kernel over the cores.

Kernels release the GIL, so Python's own threads serve; unlike an OpenMP team they do not spin
between calls and leave the cores to BLAS. The thread that calls spins for a moment once it has no
more to do, for another one's last part is about to end then, and being woken takes longer.
"""

from __future__ import annotations

import _thread
import itertools
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Optional

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cerebras_tf.errors import ConfigError
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.timeline import recording

# Elements of a simple kernel below which waking a thread (30-60 us) costs more than it gives.
GRAIN = 1 << 16
# Kind of the spans of a thread's parts.
PART = "part of a kernel"
# Looks at a job before sleeping until it is done: as long as being woken takes.
_TURNS = 3000

_VARIABLE = "CEREBRAS_TF_THREADS"


def _cores() -> int:
    wanted = os.environ.get(_VARIABLE)
    if not wanted:
        return len(os.sched_getaffinity(0))
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ConfigError(
            f"environment variable {_VARIABLE}: must be a number of threads, at least 1. "
            f"Received: {wanted!r}. Unset it to use every core."
        )
    return int(wanted)


@intrinsic
def _now(typing_context: Any, flags: Any) -> Any:
    """_now(flags): the first of an array of int64, as other threads left it by now."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load_atomic(array.data, "acquire", 8)

    return types.int64(flags), generate


@intrinsic
def _pause(typing_context: Any) -> Any:
    """Lets the core's other hardware thread run for a moment, on x86."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if builder.module.triple.startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), generate


@jit()
def _spin(flags: Any, turns: int) -> bool:
    """Whether flags[0] is no longer 0 within `turns` looks at it, of some 25 ns."""
    for _ in range(turns):
        if _now(flags) != 0:
            return True
        _pause()
    return False


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
        if not _spin(self._flags, _TURNS):
            self._asleep.acquire()


class _Pool:
    """Sleeping threads that share jobs with the thread that calls."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.queue: SimpleQueue[_Job] = SimpleQueue()
        for number in range(threads - 1):
            threading.Thread(
                target=self._serve, name=f"cerebras_tf-kernels-{number}", daemon=True
            ).start()

    def _serve(self) -> None:
        while True:
            job = self.queue.get()
            job.work()
            del job

    def run(self, run: Callable[[int], Any], chunks: int) -> None:
        """run(0) ... run(chunks - 1), in any order, this thread taking part."""
        job = _Job(run, chunks)
        for _ in range(min(self.threads, chunks) - 1):
            self.queue.put(job)
        job.work()
        job.wait()
        if job.error is not None:
            raise job.error


_pool: Optional[_Pool] = None
_start = threading.Lock()


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
                _pool = _Pool(_cores())
    return _pool


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
    if rows <= 0:
        return
    chunks = split(rows, work, grain)
    if chunks == 1:
        kernel(0, rows, *args)
        return
    bounds = [rows * chunk // chunks for chunk in range(chunks + 1)]
    _shared_pool().run(lambda chunk: kernel(bounds[chunk], bounds[chunk + 1], *args), chunks)


def for_chunks(run: Callable[[int], Any], chunks: int, work: int) -> None:
    """run(0) ... run(chunks - 1), on threads where `work` elements make that worth while."""
    if chunks <= 1 or work < 2 * GRAIN or _shared_pool().threads == 1:
        for chunk in range(chunks):
            run(chunk)
        return
    _shared_pool().run(run, chunks)
