"""A job that threads share without Python: a board in memory, and compiled code that reads it.

Handing chunks out under the GIL takes as long as a small kernel: on a Xeon with two cores, the
second thread of a product began 95 us after the call, and the call returned 51 us after its end.
Here a thread that has nothing to do looks at the board for a while, takes chunks by one atomic
operation each, and sleeps in Python where nothing comes.

A board holds one job at a time: a function, the address of its arguments, and how many chunks there
are and are taken, in one word with the number of the job, so that no thread that looked at one job
takes a chunk of the next.
"""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

from cerebras_tf.kernels.compiled_jit import jit

_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_POINTER = ir.IntType(8).as_pointer()
_ORDER = "seq_cst"

# Words of a board by their bytes from its start, on a line of memory each where threads write them.
_JOB, _DONE, _BUSY, ASLEEP, QUEUED = 0, 64, 128, 192, 256
_ENTRY, _ARGUMENTS, _ROWS, _FAILED, _YIELD, _CLOCK = 320, 328, 336, 344, 352, 360
# Of every chunk, while times are kept: the thread that ran it, and nanoseconds at start and end.
_TIMES = 384
MOST_CHUNKS = 1024
_BYTES = _TIMES + 24 * MOST_CHUNKS
# In the word of a job: chunks, chunks that are taken, number of the job.
_CHUNKS, _TAKEN, _NUMBER = 0xFFFF, 16, 32
BUSY = 2  # of a board that has another thread's job
# Looks at the board before a thread goes to sleep, and before one that waits for the others' last
# chunks lets the core run another thread; of some 40 ns.
_LOOKS = 4000
_CLOCK_MONOTONIC = 1


@intrinsic
def _load(typingctx, address):
    """The word at an address, as other threads left it by now."""

    def generate(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), _ORDER, 8)

    return types.int64(types.int64), generate


@intrinsic
def _store(typingctx, address, word):
    def generate(context, builder, signature, args):
        place = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store_atomic(args[1], place, _ORDER, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _add(typingctx, address, number):
    """Adds to a word; its value before."""

    def generate(context, builder, signature, args):
        place = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", place, args[1], _ORDER)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _replace(typingctx, address, expected, word):
    """Writes a word where the expected one stands; whether it did."""

    def generate(context, builder, signature, args):
        place = builder.inttoptr(args[0], _I64.as_pointer())
        found = builder.cmpxchg(place, args[1], args[2], _ORDER, _ORDER)
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def _pause(typingctx):
    """Lets the core's other hardware thread run for a moment, on x86."""

    def generate(context, builder, signature, args):
        if builder.module.triple.startswith(("x86_64", "i686")):
            kind = ir.FunctionType(_VOID, [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield_core(typingctx, address):
    """Calls sched_yield, which lies at the address."""

    def generate(context, builder, signature, args):
        function = builder.inttoptr(args[0], ir.FunctionType(_I32, []).as_pointer())
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _nanoseconds(typingctx, address):
    """The monotonic clock, by clock_gettime, which lies at the address."""

    def generate(context, builder, signature, args):
        room = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        taken = ir.FunctionType(_I32, [_I32, _POINTER]).as_pointer()
        function = builder.inttoptr(args[0], taken)
        builder.call(function, [_I32(_CLOCK_MONOTONIC), builder.bitcast(room, _POINTER)])
        seconds, rest = (
            builder.load(cgutils.gep_inbounds(builder, room, 0, part)) for part in (0, 1)
        )
        return builder.add(builder.mul(seconds, _I64(10**9)), rest)

    return types.int64(types.int64), generate


@intrinsic
def _call(typingctx, entry, arguments, start, stop, thread):
    """Calls what `_entry_of` made; whether it raised."""

    def generate(context, builder, signature, args):
        kind = _entry_type(context)
        result, error = (cgutils.alloca_once(builder, part.pointee) for part in kind.args[:2])
        function = builder.inttoptr(args[0], kind.as_pointer())
        status = builder.call(function, [result, error, *args[1:]])
        return builder.icmp_signed("!=", status, status.type(0))

    return types.boolean(*[types.int64] * 5), generate


def _entry_type(context):
    """Of a compiled function (address of arguments, start, stop, thread)."""
    return context.call_conv.get_function_type(types.none, [types.int64] * 4)


_kernels: dict[str, Any] = {}


@intrinsic(prefer_literal=True)
def _entry_of(typingctx, name, with_thread, arguments):
    """Address of a function that runs a kernel on a range of rows, its arguments in memory.

    The kernel is inlined. Where it were called, which of several copies of its code ran, each made
    by other optimizations and so with other last bits, would depend on what a process compiled
    itself and what it found in the cache.

    Args:
        name: of the kernel, in `_kernels`; a literal.
        with_thread: whether the kernel takes the thread's number too; a literal.
        arguments: a tuple of those that the kernel takes behind these; only its type counts.
    """
    kernel = types.Dispatcher(_kernels[name.literal_value])
    wanted = [types.int64] * (3 if with_thread.literal_value else 2) + list(arguments.types)
    called: Any = kernel.get_call_type(typingctx, tuple(wanted), {})

    def generate(context, builder, signature, args):
        name = f"{builder.function.name}.entry"
        function = ir.Function(builder.module, _entry_type(context), name)
        function.linkage = "internal"
        inner = ir.IRBuilder(function.append_basic_block())
        _, _, address, *rows = function.args
        tuple_type = context.get_value_type(arguments)
        values = inner.load(inner.inttoptr(address, tuple_type.as_pointer()))
        taken = rows if with_thread.literal_value else rows[:2]
        items = cgutils.unpack_tuple(inner, values, len(arguments.types))
        made = kernel.dispatcher.overloads[called.args]
        callee = context.declare_function(builder.module, made.fndesc)
        status, _ = context.call_conv.call_function(
            inner, callee, called.return_type, called.args, [*taken, *items], ("alwaysinline",)
        )
        with cgutils.if_unlikely(inner, status.is_error):
            context.call_conv.return_status_propagate(inner, status)
        context.active_code_library.add_linking_library(made.library)
        inner.ret(_I32(0))
        return builder.ptrtoint(function, _I64)

    return types.int64(name, with_thread, arguments), generate


@intrinsic
def _address_of(typingctx, arguments):
    """Where a copy of a tuple lies until the calling function returns."""

    def generate(context, builder, signature, args):
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), _I64)

    return types.int64(arguments), generate


@jit()
def _work(board, thread):
    """Takes chunks of the job on the board until none is left."""
    while True:
        job = _load(board + _JOB)
        chunks, chunk = job & _CHUNKS, (job >> _TAKEN) & _CHUNKS
        if chunk >= chunks:
            return
        entry, arguments = _load(board + _ENTRY), _load(board + _ARGUMENTS)
        rows, clock = _load(board + _ROWS), _load(board + _CLOCK)
        if not _replace(board + _JOB, job, job + (1 << _TAKEN)):
            continue  # another thread took it, or this is another job's word by now
        began = _nanoseconds(clock) if clock else 0
        start, stop = rows * chunk // chunks, rows * (chunk + 1) // chunks
        if _call(entry, arguments, start, stop, thread):
            _store(board + _FAILED, 1)
        if clock:
            times = board + _TIMES + 24 * chunk
            _store(times, thread)
            _store(times + 8, began)
            _store(times + 16, _nanoseconds(clock))
        _add(board + _DONE, 1)


@jit()
def _spread(board, entry, arguments, rows, chunks):
    """Puts a job on the board and returns when it is done.

    Returns:
        0, or 1 where the kernel raised, or BUSY, and nothing has run.
    """
    if not _replace(board + _BUSY, 0, 1):
        return BUSY
    _store(board + _ENTRY, entry)
    _store(board + _ARGUMENTS, arguments)
    _store(board + _ROWS, rows)
    _store(board + _FAILED, 0)
    _store(board + _DONE, 0)
    number = ((_load(board + _JOB) >> _NUMBER) + 1) & 0x7FFFFFFF
    _store(board + _JOB, (number << _NUMBER) | chunks)
    _work(board, 0)
    looks = 0
    while _load(board + _DONE) < chunks:
        _pause()
        looks += 1
        if looks > _LOOKS:
            _yield_core(_load(board + _YIELD))
    failed = _load(board + _FAILED)
    _store(board + _BUSY, 0)
    return failed


@jit()
def _has_chunks(board):
    """Whether the job on the board has chunks that nobody took."""
    job = _load(board + _JOB)
    return ((job >> _TAKEN) & _CHUNKS) < (job & _CHUNKS)


@jit()
def _serve(board, thread):
    """Works at jobs until none has come for a while, or Python has something to do.

    Returns:
        Whether the thread is counted among those asleep.
    """
    looks = 0
    while True:
        if _has_chunks(board):
            _work(board, thread)
            looks = 0
        elif _load(board + QUEUED) > 0:
            return False
        elif looks < _LOOKS:
            _pause()
            looks += 1
        else:
            _add(board + ASLEEP, 1)
            if not _has_chunks(board):
                return True
            _add(board + ASLEEP, -1)  # a job came that did not see this thread asleep


@jit()
def changes_within(address, looks):
    """Whether the word at an address is no longer 0 within so many looks at it."""
    for _ in range(looks):
        if _load(address) != 0:
            return True
        _pause()
    return False


@jit()
def _change(address, number):
    _add(address, number)


def _address_in_c(name: str) -> int:
    """Where a function of the C library lies."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


Runner = Callable[..., int]
_runners: dict[tuple[int, bool], Runner] = {}


def is_compiled(kernel: Any) -> bool:
    """Whether a kernel is a function of Numba's that can be found again by its name."""
    return isinstance(kernel, Dispatcher) and "<locals>" not in kernel.py_func.__qualname__


def _runner(kernel: Any, with_thread: bool) -> Runner:
    """A function (board, rows, chunks, *arguments) that spreads a kernel; made once.

    It knows the kernel by a name, for Numba's cache of compiled functions is kept by what a
    function closes over, and a kernel differs there from process to process. The name is part of
    its own, too: functions of one name share a file in which the cache lists them, and processes
    that write it at once would list one kernel's code as another's.
    """
    found = _runners.get((id(kernel), with_thread))
    if found is None:
        plain = kernel.py_func
        code = zlib.crc32(repr((plain.__code__.co_code, plain.__code__.co_consts)).encode())
        name = f"{plain.__module__}.{plain.__qualname__}-{code:08x}"
        if _kernels.setdefault(name, kernel) is not kernel:
            raise RuntimeError(f"kernels: two may not share a name. Received: {name}.")
        found = _runners[id(kernel), with_thread] = _make_runner(name, with_thread)
    return found


def _make_runner(name: str, with_thread: bool) -> Runner:
    def run(board, rows, chunks, *arguments):
        entry, place = _entry_of(name, with_thread, arguments), _address_of(arguments)
        if chunks == 1:
            return 1 if _call(entry, place, 0, rows, 0) else 0
        return _spread(board, entry, place, rows, chunks)

    digest = hashlib.sha256(f"{name} {with_thread}".encode()).hexdigest()[:20]
    run.__name__ = run.__qualname__ = f"run_{digest}"
    return jit()(run)


def run_alone(kernel: Any, rows: int, arguments: tuple[Any, ...], with_thread: bool) -> None:
    """kernel(0, rows, *arguments) on this thread, in the code that several threads run.

    Args:
        kernel, rows, arguments, with_thread: as `Board.run` takes them.

    Raises:
        RuntimeError: the kernel raised an error.
    """
    _check(kernel, _runner(kernel, with_thread)(0, rows, 1, *arguments))


def _check(kernel: Any, status: int) -> None:
    if status == 1:
        raise RuntimeError(
            f"kernel {kernel.py_func.__qualname__}: must not raise. Received: an error for one of "
            "its rows. Report it with the model that it came from."
        )


class Board:
    """A board, and what Python does with it.

    Attributes:
        address: of its words.
    """

    def __init__(self) -> None:
        self._memory = np.zeros(_BYTES // 8 + 8, np.int64)
        skipped = -self._memory.ctypes.data % 64 // 8
        self._words = self._memory[skipped:]
        self.address = int(self._words.ctypes.data)
        self._words[_YIELD // 8] = _address_in_c("sched_yield")
        self._clock = _address_in_c("clock_gettime")

    def word(self, place: int) -> int:
        """One of its words, ASLEEP or QUEUED."""
        return int(self._words[place // 8])

    def change(self, place: int, number: int) -> None:
        """Adds to one of its words."""
        _change(self.address + place, number)

    def serve(self, thread: int) -> bool:
        """Works at jobs; whether the thread is now counted among those asleep."""
        return bool(_serve(self.address, thread))

    def run(
        self, kernel: Any, rows: int, chunks: int, arguments: tuple[Any, ...], with_thread: bool
    ) -> bool:
        """kernel(start, stop, *arguments) on ranges that cover [0, rows), on threads that look.

        Args:
            kernel: see `is_compiled`.
            rows: number of rows.
            chunks: of rows, at most MOST_CHUNKS.
            arguments: handed on.
            with_thread: whether the kernel takes the number of the thread behind start and stop.

        Returns:
            Whether it ran; not where the board has another thread's job.

        Raises:
            RuntimeError: the kernel raised an error.
        """
        status = _runner(kernel, with_thread)(self.address, rows, chunks, *arguments)
        _check(kernel, status)
        return status != BUSY

    def keep_times(self, wanted: bool) -> None:
        """Whether the times of chunks are kept from now on."""
        self._words[_CLOCK // 8] = self._clock if wanted else 0

    def times(self, chunks: int) -> list[tuple[int, float, float]]:
        """(thread, seconds at start and at end) of the last job's chunks."""
        first = _TIMES // 8
        rows = self._words[first : first + 3 * chunks].reshape(-1, 3).tolist()
        return [(thread, start * 1e-9, end * 1e-9) for thread, start, end in rows]
