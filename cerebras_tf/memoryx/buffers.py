"""Memory for variables that are read from files and written to them: a bounded pool of pages."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import OrderedDict

import numpy as np

from cerebras_tf.errors import CapacityError
from cerebras_tf.ir import Array

# Direct I/O needs offsets, sizes and addresses that are multiples of this.
ALIGNMENT_BYTES = 4096
# Huge pages, if available, make the first touch of a buffer cheaper.
_HUGE_PAGE_BYTES = 1 << 21


def padded(size: int) -> int:
    """Bytes that `size` bytes take in memory and in files: at least one page."""
    return max(-(-size // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES


class Buffers:
    """A pool of page-aligned arrays; returned arrays are reused for the same size.

    Args:
        max_bytes: the most that arrays in use and idle ones take together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._idle: OrderedDict[int, list[Array]] = OrderedDict()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def bytes(self) -> int:
        """Bytes taken from the system now."""
        return self._bytes

    def take(self, size: int) -> Array:
        """A buffer, not filled: uint8 [size]; waits until there is memory.

        Args:
            size: bytes, a multiple of ALIGNMENT_BYTES.

        Raises:
            CapacityError: the system has no memory, or no buffer will ever be returned.
        """
        with self._changed:
            while not (self._idle.get(size) or self._free_idle(size)):
                if self._is_closed or size > self.max_bytes:
                    raise CapacityError(
                        f"memoryx_ram_gb: a buffer of {size} bytes must fit. Received: "
                        f"{self.max_bytes} bytes for all. Raise memoryx_ram_gb."
                    )
                self._changed.wait()
            if self._idle.get(size):
                return self._idle[size].pop()
            self._bytes += size
        try:
            return _pages(size)
        except OSError as error:
            with self._changed:
                self._bytes -= size
            raise CapacityError(
                f"memoryx_ram_gb: {size} bytes must be free in main memory. Received: "
                f"{error.strerror}. Lower memoryx_ram_gb, or end other programs."
            ) from error

    def _free_idle(self, size: int) -> bool:
        """Frees idle buffers until a new one fits."""
        while self._bytes + size > self.max_bytes:
            idle = next((buffers for buffers in self._idle.values() if buffers), None)
            if idle is None:
                return False
            self._bytes -= idle.pop().nbytes
        return True

    def give(self, buffer: Array) -> None:
        """Returns a buffer to the pool; it must not be used any more."""
        with self._changed:
            if self._is_closed:
                self._bytes -= buffer.nbytes
            else:
                self._idle.setdefault(buffer.nbytes, []).append(buffer)
                self._idle.move_to_end(buffer.nbytes)  # sizes not used for long go first
            self._changed.notify_all()

    def close(self) -> None:
        """Frees idle buffers; waiting calls of `take` raise CapacityError."""
        with self._changed:
            self._is_closed = True
            self._bytes -= sum(b.nbytes for idle in self._idle.values() for b in idle)
            self._idle.clear()
            self._changed.notify_all()


def _pages(size: int) -> Array:
    """Memory on pages of its own, freed with the last array on it."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
