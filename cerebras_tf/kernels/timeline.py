"""Spans of work by thread, recorded for the profiler.

Kernel threads and transfer threads add spans here; the profiler, in a higher package, reads them.
Times are those of `time.perf_counter`, in seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

# Kind of spans of one thread's chunk of a parallel kernel.
PART = "part of a kernel"


class Span(NamedTuple):
    """A piece of work of one thread.

    Attributes:
        thread: the thread's ident.
        start, end: seconds.
    """

    kind: str
    name: str
    thread: int
    start: float
    end: float
    details: dict[str, Any]


class Timeline:
    """Spans of all threads.

    Attributes:
        spans: in the order in which they ended.
        threads: names of the threads, by ident.
        current: name of the kernel that is running.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.threads: dict[int, str] = {}
        self.current = ""

    def add(self, kind: str, name: str, start: float, end: float, **details: Any) -> None:
        """Adds a span of this thread; thread-safe, because appending to a list is."""
        self.add_of(threading.get_ident(), kind, name, start, end, **details)

    def add_of(
        self, thread: int, kind: str, name: str, start: float, end: float, **details: Any
    ) -> None:
        """Adds a span of the thread with this ident."""
        if thread not in self.threads:
            names = {found.ident: found.name for found in threading.enumerate()}
            self.threads[thread] = names.get(thread, str(thread))
        self.spans.append(Span(kind, name, thread, start, end, details))


_recording: Optional[Timeline] = None


def recording() -> Optional[Timeline]:
    """The timeline being recorded; None if there is none."""
    return _recording


def record(timeline: Optional[Timeline]) -> None:
    """Starts recording to a timeline, or stops with None."""
    global _recording
    _recording = timeline


@contextlib.contextmanager
def spanned(kind: str, name: str) -> Iterator[None]:
    """Context manager: adds a span of what runs within, if a timeline is recorded."""
    timeline = _recording
    if timeline is None:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        timeline.add(kind, name, start, time.perf_counter())
