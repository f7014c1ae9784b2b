"""Profiles of steps on a server: as a message, and back on the client's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cerebras_tf.address import messages as m
from cerebras_tf.ir.program import Cost, Instruction
from cerebras_tf.kernels.timeline import PART, Span
from cerebras_tf.runtime.profiler import REMOTE_STEP, Profiler, Timing

_ROUND_TRIPS = 8  # of which the quickest gives the difference of the clocks
_MAX_PART = 4096  # calls and spans of a message: its header has their names and shapes


def profiled(profiler: Profiler) -> m.Profiled:
    """The first part of what a profiler has recorded; it is removed from the profiler."""
    texts: dict[str, int] = {}
    items: dict[tuple[int, Any], int] = {}
    instructions: list[m.ProfiledInstruction] = []
    calls, call_times = [], []

    def text(name: str) -> int:
        return texts.setdefault(name, len(texts))

    for each in profiler.timings[:_MAX_PART]:
        item, cost = each.item, each.cost
        number = items.setdefault((id(item), each.shapes), len(items))
        if number == len(instructions):
            moved = cost.bytes_read, cost.bytes_written
            instructions.append(
                m.ProfiledInstruction(
                    item.op, item.source, cost.flops, *moved, item.is_rounded, each.shapes
                )
            )
        calls.append((number, text(each.layer), text(each.direction)))
        call_times.append((each.start, each.elapsed_s, each.cpu_s))
    spans, span_times = [], []
    threads = profiler.timeline.threads
    for span in profiler.timeline.spans[:_MAX_PART]:
        part = (span.details.get(name, -1) for name in ("part", "parts"))
        spans.append((text(span.kind), text(span.name), text(threads[span.thread]), *part))
        span_times.append((span.start, span.end))
    library = profiler.library_here()
    del profiler.timings[:_MAX_PART], profiler.timeline.spans[:_MAX_PART]
    return m.Profiled(
        not profiler.timings and not profiler.timeline.spans,
        library,
        tuple(texts),
        tuple(instructions),
        np.array(calls, np.int32).reshape(-1, 3),
        np.array(call_times, np.float64).reshape(-1, 3),
        np.array(spans, np.int32).reshape(-1, 5),
        np.array(span_times, np.float64).reshape(-1, 2),
    )


def clock_offset(call: Callable[[Any], Any]) -> float:
    """Seconds by which the server's clock is ahead of this one, within half a round trip."""
    found: list[tuple[float, float]] = []
    for _ in range(_ROUND_TRIPS):
        before = time.perf_counter()
        there = call(m.AskClock()).values["ns"] / 1e9
        after = time.perf_counter()
        found.append((after - before, there - (before + after) / 2))
    return min(found)[1]


def add_profile(profiler: Profiler, found: m.Profiled, offset: float) -> None:
    """Adds a part of what was recorded there to a profiler, on the client's clock.

    Args:
        offset: see clock_offset.
    """
    items = [
        Instruction(
            op=each.op,
            inputs=(),
            outputs=(),
            attrs={"compute": "bfloat16"} if each.is_rounded else {},
            source=each.source,
            cost=Cost(each.flops, each.bytes_read, each.bytes_written),
        )
        for each in found.instructions
    ]
    timings = [
        Timing(
            item=items[number],
            layer=found.texts[layer],
            direction=found.texts[direction],
            start=start - offset,
            elapsed_s=elapsed,
            cpu_s=cpu,
            shapes=found.instructions[number].shapes,
        )
        for (number, layer, direction), (start, elapsed, cpu) in zip(
            found.calls.tolist(), found.call_times.tolist()
        )
    ]
    threads = profiler.timeline.threads
    numbers = {name: number for number, name in threads.items()}
    # Threads there have numbers that no thread here has.
    there = [numbers.setdefault(f"{name}, at cs_ip", -1 - len(numbers)) for name in found.texts]
    spans = [
        Span(
            kind=found.texts[kind],
            name=found.texts[name],
            thread=there[thread],
            start=start - offset,
            end=end - offset,
            details={"part": part, "parts": parts} if found.texts[kind] == PART else {},
        )
        for (kind, name, thread, part, parts), (start, end) in zip(
            found.spans.tolist(), found.span_times.tolist()
        )
    ]
    names = {number: name for name, number in numbers.items()}
    threads.update({span.thread: names[span.thread] for span in spans})
    wafer = next((span.thread for span in spans if span.kind == REMOTE_STEP), None)
    profiler.take(timings, spans, wafer)
    profiler.library = found.library
