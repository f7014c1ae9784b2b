"""Memory that kernels take for the time of a call, and how much it was.

What was taken is kept for the next call, as fresh pages cost time. Kernels return it in the order
opposite to taking it, so a thread's memory is a stack. A thread has one while it holds some of it:
TensorFlow's threads are new to Python in each step, and would leave theirs behind.
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
    """Scratch memory, of one thread at a time.

    Attributes:
        top: bytes taken now.
        most: the largest `top` since `reset_peak`.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self.top = 0
        self.most = 0

    def size(self) -> int:
        """Bytes that it keeps."""
        return self._memory.size

    def take(self, size: int) -> np.ndarray:
        """uint8 [size], aligned, not filled."""
        start = self.top
        if start + size > self._memory.size:
            # What is taken below `start` stays alive in the arrays that were handed out.
            self._memory = aligned(start + size)
        self.top = start + size
        self.most = max(self.most, self.top)
        return self._memory[start : start + size]


_held: dict[int, _Stack] = {}  # by the number of the thread
_free: list[_Stack] = []
_stacks: list[_Stack] = []
_lock = threading.Lock()


def _forget_threads() -> None:
    """A forked child has none of its parent's threads but the one that forked."""
    global _lock
    _lock = threading.Lock()
    number = threading.get_ident()
    mine = _held.pop(number, None)
    _held.clear()
    if mine is not None:
        _held[number] = mine


os.register_at_fork(after_in_child=_forget_threads)


def aligned(size: int) -> np.ndarray:
    """uint8 [size], not filled, starting on a multiple of ALIGNMENT_BYTES."""
    memory = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[start : start + size]


def _claimed(number: int) -> _Stack:
    """A stack for a thread that holds none: the largest, as those who share work out take first."""
    with _lock:
        if _free:
            stack = max(_free, key=_Stack.size)
            _free.remove(stack)
        else:
            stack = _Stack()
            _stacks.append(stack)
    _held[number] = stack
    return stack


@contextmanager
def borrowed(shape: tuple[int, ...], dtype: Any = np.float32) -> Iterator[np.ndarray]:
    """An array of scratch memory, not filled, for the time of the context.

    Args:
        shape: of the array.
        dtype: NumPy dtype of the elements.
    """
    kind, number = np.dtype(dtype), threading.get_ident()
    size = math.prod(shape) * kind.itemsize
    held = _held.get(number)
    stack = _claimed(number) if held is None else held
    before = stack.top
    try:
        yield stack.take(rounded(size))[:size].view(kind).reshape(shape)
    finally:
        stack.top = before
        if held is None:
            _free.append(_held.pop(number))


def rounded(size: int) -> int:
    """Bytes that an array of `size` bytes takes here."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def note(size: int) -> None:
    """Counts memory that a kernel takes from elsewhere, beyond what is taken now."""
    with borrowed((0,), np.uint8):
        stack = _held[threading.get_ident()]
        stack.most = max(stack.most, stack.top + size)


def reset_peak() -> None:
    """Forgets the marks; no kernel may be running."""
    for stack in _stacks:
        stack.most = stack.top


def peak_bytes() -> int:
    """The most bytes taken since reset_peak, the marks of all stacks added up."""
    return sum(stack.most for stack in _stacks)
