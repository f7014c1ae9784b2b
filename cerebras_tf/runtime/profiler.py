"""Times every instruction of a step: a listener of the executor, and a backend that calls it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Protocol

from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import Cost, Instruction, Program
from cerebras_tf.ir.schedule import Entry, Run
from cerebras_tf.kernels.blas import library_name
from cerebras_tf.kernels.compiled_bfloat16 import instructions
from cerebras_tf.kernels.instruction_set import summarize
from cerebras_tf.kernels.timeline import PART, Span, Timeline, record, recording
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.backend import Call
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.speeds import measured_speeds
from cerebras_tf.swarmx.swarm import Swarm
from cerebras_tf.whole_file import write_whole

# Kinds of spans besides those of schedule entries, which are Entry.kind.
KERNEL = "kernel"  # an instruction, from the executor's thread
EXCHANGE = "exchange"  # a mean or a copy between wafers, from a thread that moves them
WAFER_STEP = "wafer step"  # everything between the features' arrival and the results
REMOTE_STEP = "remote step"  # of a wafer at an address, on its computer
LOOP_STEP = "step"  # from one end of tf.estimator's loop to the next
MAX_CALLS = 1_000_000  # of kernels; a profile ends with the step that exceeds it


class Timing(NamedTuple):
    """One call of a kernel.

    Attributes:
        item: the instruction.
        layer: name of its layer; "" for none.
        direction: "forward", "backward" or "update".
        start: when it began, by `time.perf_counter`.
        elapsed_s: seconds that it took.
        cpu_s: CPU seconds of the calling thread, and seconds of the chunks that other threads ran.
        shapes: of its operands.
    """

    item: Instruction
    layer: str
    direction: str
    start: float
    elapsed_s: float
    cpu_s: float
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def cost(self) -> Cost:
        """What the instruction costs."""
        return self.item.cost

    def span(self, thread: int) -> Span:
        """The call on the track of a thread."""
        details = {
            "source": self.item.source,
            "flops": self.cost.flops,
            "bytes": self.cost.bytes_read + self.cost.bytes_written,
            "threads": round(self.cpu_s / max(self.elapsed_s, 1e-9), 2),
            "shapes": self.shapes,
        }
        end = self.start + self.elapsed_s
        return Span(KERNEL, self.item.op, thread, self.start, end, details)


class Recorder(Protocol):
    """A session of a wafer at an address, which records there."""

    @property
    def profile_is_full(self) -> bool:
        """Whether the profile there has as many calls as it may have."""

    def start_profile(self) -> None:
        """Records there from now on."""

    def take_profile(self, profiler: Profiler) -> None:
        """Ends recording there, and adds what was recorded to a profiler."""

    def measured_speeds(self, side: int, rounded: bool) -> Speeds:
        """See runtime.speeds.measured_speeds; of the computer there."""


class Profiler:
    """A listener of executors that keeps times while it records.

    Attributes:
        timeline: spans of all threads.
        timings: calls of kernels, in order.
        remote: what records, for a wafer at an address.
        library: what multiplies matrices there.
    """

    remote: Optional[Recorder] = None
    library = ""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets what was recorded."""
        self.timeline = Timeline()
        self.timings: list[Timing] = []
        self._program = Program()
        self._items: Optional[Iterator[Instruction]] = None  # of the run that is under way
        self._layer = self._direction = ""
        self._before = 0.0
        self._thread = 0
        self._is_inside = False

    def start(self) -> None:
        """Records from now on."""
        record(self.timeline)
        if self.remote is not None:
            self.remote.start_profile()

    def pause(self) -> None:
        """Ends recording; the timeline does not have the calls of kernels yet."""
        if self.is_recording:
            record(None)

    @property
    def is_full(self) -> bool:
        """Whether it has as many calls of kernels as it may have."""
        if self.remote is not None:
            return self.remote.profile_is_full
        return len(self.timings) >= MAX_CALLS

    def stop(self) -> None:
        """Ends recording, and keeps what was recorded."""
        if self.is_recording:
            self.pause()
            if self.remote is not None:
                self.remote.take_profile(self)
            # Only now: making a span takes longer than a small kernel.
            self.timeline.spans.extend(timing.span(self._thread) for timing in self.timings)

    def limits(self, side: int) -> tuple[Speeds, str]:
        """The speeds of the computer that ran the kernels, and what multiplies its matrices.

        Args:
            side: see measured_speeds.
        """
        rounded = any(timing.item.is_rounded for timing in self.timings)
        if self.remote is not None:
            return self.remote.measured_speeds(side, rounded), self.library
        return measured_speeds(side, rounded), self.library_here()

    def library_here(self) -> str:
        """What multiplies the matrices of the kernels on this computer."""
        if any(timing.item.is_rounded for timing in self.timings):
            return summarize(instructions())
        return library_name()

    def take(self, timings: Sequence[Timing], spans: Iterable[Span], thread: Optional[int]) -> None:
        """Adds what another profiler recorded; `thread`, if any, called its kernels."""
        self.timings.extend(timings)
        self.timeline.spans.extend(spans)
        self._thread = self._thread if thread is None else thread

    @property
    def is_recording(self) -> bool:
        """Whether it records now."""
        return recording() is self.timeline

    def begin(self, program: Program) -> None:
        self._program = program
        if self.is_recording:
            self._thread = threading.get_ident()
            self.timeline.threads[self._thread] = "wafer"

    def before(self, entry: Entry) -> None:
        if isinstance(entry, Run):
            layers = self._program.layers
            self._layer = layers[entry.layer].name if entry.layer >= 0 else ""
            self._direction = entry.direction
            self._items = iter(self._program.computed(entry))
        self._before = time.perf_counter()

    def after(self, entry: Entry) -> None:
        self._items = None
        if not self.is_recording:
            return
        name = f"{self._direction} {self._layer}" if isinstance(entry, Run) else entry.kind
        self.timeline.add(entry.kind, name, self._before, time.perf_counter())

    def record_collective(self, what: str, start: float, end: float, size: int) -> None:
        """See swarmx.swarm.Observer."""
        if self.is_recording:
            self.timeline.add(EXCHANGE, what, start, end, bytes=size)

    def run_timed(
        self, call: Call, arrays: Sequence[Array], out: Sequence[Optional[Array]]
    ) -> Sequence[Array]:
        """Runs the next instruction, and keeps its time.

        Instructions of a branch count as the conditional.
        """
        if self._items is None or not self.is_recording or self._is_inside:
            return call(arrays, out)
        self._is_inside = True
        try:
            return self._timed(next(self._items), call, arrays, out)
        finally:
            self._is_inside = False

    def _timed(
        self, item: Instruction, call: Call, arrays: Sequence[Array], out: Sequence[Optional[Array]]
    ) -> Sequence[Array]:
        self.timeline.current = item.op
        spans = self.timeline.spans
        before, cpu, start = len(spans), time.thread_time(), time.perf_counter()
        results = call(arrays, out)
        end = time.perf_counter()
        others = [s for s in spans[before:] if s.kind == PART and s.thread != self._thread]
        worked = time.thread_time() - cpu + sum(span.end - span.start for span in others)
        took = start, end - start, worked
        shapes = tuple(array.shape for array in arrays)
        self.timings.append(Timing(item, self._layer, self._direction, *took, shapes))
        return results


class TimedBackend(CpuBackend):
    """A CpuBackend that passes every call to a profiler."""

    def __init__(self, swarm: Optional[Swarm], profiler: Profiler) -> None:
        super().__init__(swarm)
        self._profiler = profiler

    def load(
        self, instruction: Instruction, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> Call:
        call = super().load(instruction, inputs, outputs)
        return lambda arrays, out: self._profiler.run_timed(call, arrays, out)


def make_backend(
    swarm: Optional[Swarm], profiler: Optional[Profiler]
) -> tuple[CpuBackend, list[Profiler]]:
    """A backend, and the listeners of its executors: with a profiler, or without."""
    if profiler is None:
        return CpuBackend(swarm), []
    if swarm is not None:
        swarm.observe(profiler.record_collective)
    return TimedBackend(swarm, profiler), [profiler]


def write_trace(timeline: Timeline, path: Path) -> None:
    """Writes a trace with a track for each thread name.

    TensorFlow runs the wafer's steps on different threads, which share a name.
    """
    origin = min((span.start for span in timeline.spans), default=0.0)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(timeline.threads.values()))}
    tracks = {thread: numbers[name] for thread, name in timeline.threads.items()}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": name}}
        for name, number in numbers.items()
    ]
    # Viewers nest a span into the one before it that has not ended: the longer one comes first.
    for span in sorted(timeline.spans, key=lambda span: (span.start, -span.end)):
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": tracks[span.thread],
                "name": span.name,
                "cat": span.kind,
                "ts": 1e6 * (span.start - origin),
                "dur": 1e6 * (span.end - span.start),
                "args": span.details,
            }
        )
    write_whole(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
