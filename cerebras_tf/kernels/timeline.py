"""What threads do, and when: spans that whoever works adds while somebody records.

Kernels' threads and those that move variables are far below a profile; they reach it through here.
Times are those of `time.perf_counter`, in seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

# Kind of the spans of what one thread does of a kernel that several share.
PART = "part of a kernel"


class Span(NamedTuple):
    """A piece of work of one thread.

    Attributes:
        kind: what sort of work, for colours and filters.
        name: what it is.
        thread: the thread's number.
        start: when it began.
        end: when it ended.
        details: what else is known of it, by name.
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
        threads: names of the threads among them, by number.
        current: what the kernels' threads are working at.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.threads: dict[int, str] = {}
        self.current = ""

    def add(self, kind: str, name: str, start: float, end: float, **details: Any) -> None:
        """Adds a span of this thread; appending to a list is safe from any of them."""
        self.add_of(threading.get_ident(), kind, name, start, end, **details)

    def add_of(
        self, thread: int, kind: str, name: str, start: float, end: float, **details: Any
    ) -> None:
        """Adds a span of the thread with this number."""
        if thread not in self.threads:
            names = {found.ident: found.name for found in threading.enumerate()}
            self.threads[thread] = names.get(thread, str(thread))
        self.spans.append(Span(kind, name, thread, start, end, details))


_recording: Optional[Timeline] = None


def recording() -> Optional[Timeline]:
    """The timeline that is recorded now; None where none is."""
    return _recording


def record(timeline: Optional[Timeline]) -> None:
    """Records to a timeline from now on, or to none."""
    global _recording
    _recording = timeline


@contextlib.contextmanager
def spanned(kind: str, name: str) -> Iterator[None]:
    """Adds a span of what runs within, where one is recorded."""
    timeline = _recording
    if timeline is None:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        timeline.add(kind, name, start, time.perf_counter())
