"""Scratch memory: a stack allocator per thread, with peak usage.

Memory is kept for the next call, because fresh pages cost time. Kernels return memory in reverse
order, so each thread's memory is a stack. A thread owns a stack only while it uses it: TensorFlow
creates new Python threads in every step, and their stacks would pile up.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

ALIGNMENT_BYTES = 128


class _Stack:
    """Scratch memory of one thread at a time.

    Attributes:
        top: bytes in use.
        peak: the largest `top` since `reset_peak`.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self.top = 0
        self.peak = 0

    def size(self) -> int:
        """Bytes allocated."""
        return self._memory.size

    def take(self, size: int) -> np.ndarray:
        """uint8 [size], aligned, not initialised."""
        start = self.top
        if start + size > self._memory.size:
            # Arrays handed out earlier keep the old memory alive.
            self._memory = aligned(start + size)
        self.top = start + size
        self.peak = max(self.peak, self.top)
        return self._memory[start : start + size]


_stacks_by_thread: dict[int, _Stack] = {}
_free: list[_Stack] = []
_stacks: list[_Stack] = []
_lock = threading.Lock()


def _reset_after_fork() -> None:
    """A forked child has only the thread that forked."""
    global _lock
    _lock = threading.Lock()
    number = threading.get_ident()
    mine = _stacks_by_thread.pop(number, None)
    _stacks_by_thread.clear()
    if mine is not None:
        _stacks_by_thread[number] = mine


os.register_at_fork(after_in_child=_reset_after_fork)


def aligned(size: int) -> np.ndarray:
    """uint8 [size], not initialised, starting at a multiple of ALIGNMENT_BYTES."""
    memory = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[start : start + size]


def _claim(number: int) -> _Stack:
    """A stack for a thread without one: the largest, since the threads that start parallel loops
    come first."""
    with _lock:
        if _free:
            stack = max(_free, key=_Stack.size)
            _free.remove(stack)
        else:
            stack = _Stack()
            _stacks.append(stack)
    _stacks_by_thread[number] = stack
    return stack


@contextmanager
def borrow(shape: tuple[int, ...], dtype: Any = np.float32) -> Iterator[np.ndarray]:
    """Context manager: an array of scratch memory, not initialised."""
    kind, number = np.dtype(dtype), threading.get_ident()
    size = math.prod(shape) * kind.itemsize
    own_stack = _stacks_by_thread.get(number)
    stack = _claim(number) if own_stack is None else own_stack
    before = stack.top
    try:
        yield stack.take(round_up(size))[:size].view(kind).reshape(shape)
    finally:
        stack.top = before
        if own_stack is None:
            _free.append(_stacks_by_thread.pop(number))


def round_up(size: int) -> int:
    """Bytes that an array of `size` bytes takes."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def count_external(size: int) -> None:
    """Counts memory that a kernel takes from elsewhere in addition to what is in use now."""
    with borrow((0,), np.uint8):
        stack = _stacks_by_thread[threading.get_ident()]
        stack.peak = max(stack.peak, stack.top + size)


def reset_peak() -> None:
    """Resets the peaks; no kernel may be running."""
    for stack in _stacks:
        stack.peak = stack.top


def peak_bytes() -> int:
    """The most bytes in use since `reset_peak`, added over all stacks."""
    return sum(stack.peak for stack in _stacks)
