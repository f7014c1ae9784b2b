"""Memory that kernels take for the time of a call, and how much it was.

Every thread keeps what it has taken for its next call, as fresh pages cost time. Kernels return it
in the order opposite to taking it, so a thread's memory is a stack.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import numpy as np

ALIGNMENT_BYTES = 128


class _Stack:
    """The scratch memory of one thread.

    Attributes:
        top: bytes taken now.
        most: the largest `top` since `reset_peak`.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self.top = 0
        self.most = 0

    def take(self, size: int) -> np.ndarray:
        """uint8 [size], aligned, not filled."""
        start = self.top
        if start + size > self._memory.size:
            # What is taken below `start` stays alive in the arrays that were handed out.
            self._memory = aligned(start + size)
        self.top = start + size
        self.most = max(self.most, self.top)
        return self._memory[start : start + size]


_own = threading.local()
_stacks: list[_Stack] = []
_lock = threading.Lock()


def aligned(size: int) -> np.ndarray:
    """uint8 [size], not filled, starting on a multiple of ALIGNMENT_BYTES."""
    memory = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[start : start + size]


def _stack() -> _Stack:
    stack: Optional[_Stack] = getattr(_own, "stack", None)
    if stack is None:
        stack = _own.stack = _Stack()
        with _lock:
            _stacks.append(stack)
    return stack


@contextmanager
def borrowed(shape: tuple[int, ...], dtype: Any = np.float32) -> Iterator[np.ndarray]:
    """An array of scratch memory, not filled, for the time of the context.

    Args:
        shape: of the array.
        dtype: NumPy dtype of the elements.
    """
    kind, stack = np.dtype(dtype), _stack()
    before = stack.top
    memory = stack.take(rounded(math.prod(shape) * kind.itemsize))
    try:
        yield memory[: math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
    finally:
        stack.top = before


def rounded(size: int) -> int:
    """Bytes that an array of `size` bytes takes here."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def note(size: int) -> None:
    """Counts memory that a kernel takes from elsewhere, beyond what is taken now."""
    stack = _stack()
    stack.most = max(stack.most, stack.top + size)


def reset_peak() -> None:
    """Forgets the marks; no kernel may be running."""
    for stack in _stacks:
        stack.most = stack.top


def peak_bytes() -> int:
    """The most bytes taken since reset_peak, the marks of all threads added up."""
    return sum(stack.most for stack in _stacks)
