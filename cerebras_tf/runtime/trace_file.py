"""Writes spans as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is that of Chrome's trace events: "Trace Event Format" (Duca and Sinclair, 2016), with
complete events "X" and metadata "M", times in microseconds.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cerebras_tf.kernels.timeline import Timeline


def write_trace(timeline: Timeline, path: Path) -> None:
    """Writes a trace: one track a thread, or a name that threads share.

    TensorFlow makes the wafer's steps now on one of its threads and now on another.

    Args:
        timeline: the spans.
        path: the file; its folder is made.
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
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".json.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
    os.replace(part, path)
