"""A work queue without the GIL: threads take chunks of a parallel loop by atomic operations.

Dispatching chunks under the GIL takes as long as a small kernel: on a Xeon with two cores, the
second thread of a product started 95 us after the call, and the call returned 51 us after its end.
Here worker threads spin on the queue in compiled code, take chunks by compare-and-swap, and go to
sleep in Python when no job arrives.

The queue holds one job at a time: a function, the address of its arguments, and one 64-bit word
with the number of chunks, the next chunk and the job's generation. The generation prevents a thread
that read one job from taking a chunk of the next one (the ABA problem).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_intrinsics import emits
from cerebras_tf.kernels.compiled_jit import jit

_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_POINTER = ir.IntType(8).as_pointer()
_ORDER = "seq_cst"

# Byte offsets of the queue's words; words that threads write have a cache line each.
_JOB, _DONE, _LOCK, SLEEPING, PYTHON_JOBS = 0, 64, 128, 192, 256
_ENTRY, _ARGUMENTS, _ROWS, _FAILED, _YIELD, _CLOCK = 320, 328, 336, 344, 352, 360
# Per chunk, while times are recorded: thread, and nanoseconds at its start and end.
_TIMES = 384
MAX_CHUNKS = 1024
_BYTES = _TIMES + 24 * MAX_CHUNKS
# The job word: number of chunks, next chunk, generation.
_COUNT_MASK, _NEXT_SHIFT, _GENERATION_SHIFT = 0xFFFF, 16, 32
BUSY = 2  # another thread's job is in the queue
# Reads of the queue, some 40 ns each, before a worker goes to sleep, and before a caller that waits
# for the last chunks yields its core.
_SPINS = 4000
_CLOCK_MONOTONIC = 1


@emits(types.int64, types.int64)
def _atomic_load(builder, address):
    return builder.load_atomic(builder.inttoptr(address, _I64.as_pointer()), _ORDER, 8)


@emits(types.void, types.int64, types.int64)
def _atomic_store(builder, address, word):
    builder.store_atomic(word, builder.inttoptr(address, _I64.as_pointer()), _ORDER, 8)


@emits(types.int64, types.int64, types.int64)
def _atomic_add(builder, address, number):
    """Adds to a word; returns its value before."""
    place = builder.inttoptr(address, _I64.as_pointer())
    return builder.atomic_rmw("add", place, number, _ORDER)


@emits(types.boolean, types.int64, types.int64, types.int64)
def _compare_and_swap(builder, address, expected, word):
    """Writes a word if the expected one is there; returns whether it did."""
    place = builder.inttoptr(address, _I64.as_pointer())
    found = builder.cmpxchg(place, expected, word, _ORDER, _ORDER)
    return builder.extract_value(found, 1)


@emits(types.void)
def _pause(builder):
    """Lets the core's other hardware thread run for a moment, on x86."""
    if builder.module.triple.startswith(("x86_64", "i686")):
        kind = ir.FunctionType(_VOID, [])
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])


@emits(types.void, types.int64)
def _yield_core(builder, address):
    """Calls sched_yield at the address."""
    builder.call(builder.inttoptr(address, ir.FunctionType(_I32, []).as_pointer()), [])


@emits(types.int64, types.int64)
def _nanoseconds(builder, address):
    """The monotonic clock, from clock_gettime at the address."""
    timespec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
    function = builder.inttoptr(address, ir.FunctionType(_I32, [_I32, _POINTER]).as_pointer())
    builder.call(function, [_I32(_CLOCK_MONOTONIC), builder.bitcast(timespec, _POINTER)])
    seconds, rest = (
        builder.load(cgutils.gep_inbounds(builder, timespec, 0, field)) for field in (0, 1)
    )
    return builder.add(builder.mul(seconds, _I64(10**9)), rest)


@intrinsic
def _call(typingctx, entry, arguments, start, stop, thread):
    """Calls what `_entry_point` returned; whether it raised."""

    def generate(context, builder, signature, args):
        kind = _entry_type(context)
        result, error = (cgutils.alloca_once(builder, part.pointee) for part in kind.args[:2])
        function = builder.inttoptr(args[0], kind.as_pointer())
        status = builder.call(function, [result, error, *args[1:]])
        return builder.icmp_signed("!=", status, status.type(0))

    return types.boolean(*[types.int64] * 5), generate


def _entry_type(context: Any) -> Any:
    """Type of a compiled function (address of arguments, start, stop, thread)."""
    return context.call_conv.get_function_type(types.none, [types.int64] * 4)


_kernels: dict[str, Any] = {}


@intrinsic(prefer_literal=True)
def _entry_point(typingctx, name, with_thread, arguments):
    """Address of a function that runs a kernel on a range of rows, with its arguments in memory.

    The kernel is inlined. If it were called, one of several differently optimized copies of its
    code would run, depending on what this process compiled and what it found in the cache, and the
    last bits of results would differ.

    Args:
        name: key of `_kernels`; a literal.
        with_thread: whether the kernel takes the thread's number too; a literal.
        arguments: tuple of the kernel's other arguments; only its type is used.
    """
    generate = _entry_generator(typingctx, name.literal_value, with_thread.literal_value, arguments)
    return types.int64(name, with_thread, arguments), generate


# Types of the arguments after start and stop of fused elementwise kernels (codegen_source.py).
_ELEMENTWISE_ARGUMENTS = types.Tuple(  # type: ignore[attr-defined]
    [types.boolean, types.int64, *(types.Array(types.int64, ndim, "C") for ndim in (1, 2, 1))]
)


@intrinsic(prefer_literal=True)
def _elementwise_entry_point(typingctx, name):
    """As `_entry_point` for a fused elementwise kernel."""
    generate = _entry_generator(typingctx, name.literal_value, False, _ELEMENTWISE_ARGUMENTS)
    return types.int64(name), generate


def _entry_generator(typingctx: Any, name: str, with_thread: bool, arguments: Any) -> Any:
    """What emits the function of `_entry_point` and returns its address."""
    kernel = types.Dispatcher(_kernels[name])
    wanted = [types.int64] * (3 if with_thread else 2) + list(arguments.types)
    called: Any = kernel.get_call_type(typingctx, tuple(wanted), {})

    def generate(context, builder, signature, args):
        name = f"{builder.function.name}.entry"
        function = ir.Function(builder.module, _entry_type(context), name)
        function.linkage = "internal"
        inner = ir.IRBuilder(function.append_basic_block())
        _, _, address, *rows = function.args
        tuple_type = context.get_value_type(arguments)
        values = inner.load(inner.inttoptr(address, tuple_type.as_pointer()))
        parameters = rows if with_thread else rows[:2]
        items = cgutils.unpack_tuple(inner, values, len(arguments.types))
        compiled_kernel = kernel.dispatcher.overloads[called.args]
        callee = context.declare_function(builder.module, compiled_kernel.fndesc)
        status, _ = context.call_conv.call_function(
            inner, callee, called.return_type, called.args, [*parameters, *items], ("alwaysinline",)
        )
        with cgutils.if_unlikely(inner, status.is_error):
            context.call_conv.return_status_propagate(inner, status)
        context.active_code_library.add_linking_library(compiled_kernel.library)
        inner.ret(_I32(0))
        return builder.ptrtoint(function, _I64)

    return generate


@intrinsic
def _stack_address(typingctx, arguments):
    """Address of a copy of a tuple on the calling function's stack."""

    def generate(context, builder, signature, args):
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), _I64)

    return types.int64(arguments), generate


@jit()
def _run_chunks(queue, thread):
    """Takes and runs chunks of the job until none is left."""
    while True:
        job = _atomic_load(queue + _JOB)
        chunks, chunk = job & _COUNT_MASK, (job >> _NEXT_SHIFT) & _COUNT_MASK
        if chunk >= chunks:
            return
        entry, arguments = _atomic_load(queue + _ENTRY), _atomic_load(queue + _ARGUMENTS)
        rows, clock = _atomic_load(queue + _ROWS), _atomic_load(queue + _CLOCK)
        if not _compare_and_swap(queue + _JOB, job, job + (1 << _NEXT_SHIFT)):
            continue  # another thread took the chunk, or another job is in the queue
        began = _nanoseconds(clock) if clock else 0
        start, stop = rows * chunk // chunks, rows * (chunk + 1) // chunks
        if _call(entry, arguments, start, stop, thread):
            _atomic_store(queue + _FAILED, 1)
        if clock:
            times = queue + _TIMES + 24 * chunk
            _atomic_store(times, thread)
            _atomic_store(times + 8, began)
            _atomic_store(times + 16, _nanoseconds(clock))
        _atomic_add(queue + _DONE, 1)


@jit()
def _submit(queue, entry, arguments, rows, chunks):
    """Puts a job into the queue, takes part in it, and returns when all chunks are done.

    Returns:
        0; 1 if the kernel raised; BUSY, without running anything, if the queue holds another job.
    """
    if not _compare_and_swap(queue + _LOCK, 0, 1):
        return BUSY
    _atomic_store(queue + _ENTRY, entry)
    _atomic_store(queue + _ARGUMENTS, arguments)
    _atomic_store(queue + _ROWS, rows)
    _atomic_store(queue + _FAILED, 0)
    _atomic_store(queue + _DONE, 0)
    generation = ((_atomic_load(queue + _JOB) >> _GENERATION_SHIFT) + 1) & 0x7FFFFFFF
    _atomic_store(queue + _JOB, (generation << _GENERATION_SHIFT) | chunks)
    _run_chunks(queue, 0)
    spins = 0
    while _atomic_load(queue + _DONE) < chunks:
        _pause()
        spins += 1
        if spins > _SPINS:
            _yield_core(_atomic_load(queue + _YIELD))
    failed = _atomic_load(queue + _FAILED)
    _atomic_store(queue + _LOCK, 0)
    return failed


@jit()
def _has_chunks(queue):
    job = _atomic_load(queue + _JOB)
    return ((job >> _NEXT_SHIFT) & _COUNT_MASK) < (job & _COUNT_MASK)


@jit(python=True)
def _serve(queue, thread):
    """Runs chunks until no job has come for a while, or a Python job waits.

    Returns:
        Whether the thread is counted as sleeping.
    """
    spins = 0
    while True:
        if _has_chunks(queue):
            _run_chunks(queue, thread)
            spins = 0
        elif _atomic_load(queue + PYTHON_JOBS) > 0:
            return False
        elif spins < _SPINS:
            _pause()
            spins += 1
        else:
            _atomic_add(queue + SLEEPING, 1)
            if not _has_chunks(queue):
                return True
            _atomic_add(queue + SLEEPING, -1)  # a job arrived that counted this thread as awake


@jit(python=True)
def spin_until_set(address, spins):
    """Whether the word at an address became nonzero within so many reads."""
    for _ in range(spins):
        if _atomic_load(address) != 0:
            return True
        _pause()
    return False


@jit(python=True)
def _increment(address, number):
    _atomic_add(address, number)


def _libc_address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


Runner = Callable[..., int]
_runners: dict[tuple[int, bool], Runner] = {}


def is_compiled(kernel: Any) -> bool:
    """Whether a kernel is compiled by Numba and can be found again by its name."""
    return isinstance(kernel, Dispatcher) and "<locals>" not in kernel.py_func.__qualname__


def _runner(kernel: Any, with_thread: bool) -> Runner:
    """The compiled function (queue, rows, chunks, *arguments) that runs a kernel; made once.

    It refers to the kernel by name: Numba's cache key includes what a function closes over, and a
    dispatcher differs from process to process. Its own name contains that name: functions of one
    name share an index file of the cache, and processes that write it at once would mix them up.
    """
    found = _runners.get((id(kernel), with_thread))
    if found is None:
        plain = kernel.py_func
        code = zlib.crc32(repr((plain.__code__.co_code, plain.__code__.co_consts)).encode())
        name = f"{plain.__module__}.{plain.__qualname__}-{code:08x}"
        if _kernels.setdefault(name, kernel) is not kernel:
            raise RuntimeError(f"kernels: names must be unique. Received: two of {name}.")
        make = _make_elementwise_runner if is_elementwise(plain) else _make_runner
        found = _runners[id(kernel), with_thread] = make(name, with_thread)
    return found


@jit(python=True)
def _run_entry(entry, queue, rows, chunks, *arguments):
    place = _stack_address(arguments)
    if chunks == 1:
        return 1 if _call(entry, place, 0, rows, 0) else 0
    return _submit(queue, entry, place, rows, chunks)


def is_elementwise(function: Any) -> bool:
    """Whether a function is a fused elementwise kernel, all of which take the same arguments."""
    return function.__module__.startswith("elementwise_")


def _make_elementwise_runner(name: str, with_thread: bool) -> Runner:
    """A runner that shares all but the kernel's entry point, which halves its compilation."""

    def entry():
        return _elementwise_entry_point(name)

    entry.__name__ = entry.__qualname__ = f"entry_{_digest(name)}"
    compiled = jit(python=True)(entry)
    run = functools.partial(_run_entry, compiled())
    run.entry = compiled  # type: ignore[attr-defined]  # keeps the code in memory
    return run


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _make_runner(name: str, with_thread: bool) -> Runner:
    def run(queue, rows, chunks, *arguments):
        entry, place = _entry_point(name, with_thread, arguments), _stack_address(arguments)
        if chunks == 1:
            return 1 if _call(entry, place, 0, rows, 0) else 0
        return _submit(queue, entry, place, rows, chunks)

    run.__name__ = run.__qualname__ = f"run_{_digest(f'{name} {with_thread}')}"
    return jit(python=True)(run)


def run_on_this_thread(
    kernel: Any, rows: int, arguments: tuple[Any, ...], with_thread: bool
) -> None:
    """kernel(0, rows, *arguments) in the code that several threads run; see `WorkQueue.run`."""
    _check(kernel, _runner(kernel, with_thread)(0, rows, 1, *arguments))


def _check(kernel: Any, status: int) -> None:
    if status == 1:
        raise RuntimeError(
            f"kernel {kernel.py_func.__qualname__}: must not raise. Received: an error for one of "
            "its rows. Report it with the model."
        )


class WorkQueue:
    """The queue's memory, and the calls into compiled code."""

    def __init__(self) -> None:
        self._memory = np.zeros(_BYTES // 8 + 8, np.int64)
        skipped = -self._memory.ctypes.data % 64 // 8
        self._words = self._memory[skipped:]
        self.address = int(self._words.ctypes.data)
        self._words[_YIELD // 8] = _libc_address("sched_yield")
        self._clock = _libc_address("clock_gettime")

    def counter(self, place: int) -> int:
        """The value of SLEEPING or PYTHON_JOBS."""
        return int(self._words[place // 8])

    def increment(self, place: int, number: int) -> None:
        """Adds to SLEEPING or PYTHON_JOBS."""
        _increment(self.address + place, number)

    def serve(self, thread: int) -> bool:
        """Runs chunks; returns whether the thread is now counted as sleeping."""
        return bool(_serve(self.address, thread))

    def run(
        self, kernel: Any, rows: int, chunks: int, arguments: tuple[Any, ...], with_thread: bool
    ) -> bool:
        """kernel(start, stop, *arguments) on ranges that cover [0, rows), on all awake threads.

        Args:
            kernel: one for which `is_compiled` holds.
            chunks: number of ranges, at most MAX_CHUNKS.
            with_thread: whether the kernel takes the number of the thread after start and stop.

        Returns:
            False, without running anything, if the queue holds another thread's job.

        Raises:
            RuntimeError: the kernel raised an error.
        """
        status = _runner(kernel, with_thread)(self.address, rows, chunks, *arguments)
        _check(kernel, status)
        return status != BUSY

    def record_times(self, wanted: bool) -> None:
        """Switches the recording of chunk times on or off."""
        self._words[_CLOCK // 8] = self._clock if wanted else 0

    def times(self, chunks: int) -> list[tuple[int, float, float]]:
        """(thread, seconds at start and at end) of the last job's chunks."""
        first = _TIMES // 8
        rows = self._words[first : first + 3 * chunks].reshape(-1, 3).tolist()
        return [(thread, start * 1e-9, end * 1e-9) for thread, start, end in rows]
