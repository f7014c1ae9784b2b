"""A trace has a track a thread, and spans in microseconds."""

from __future__ import annotations

import json
import threading

from cerebras_tf.kernels.timeline import Timeline
from cerebras_tf.runtime.profiler import write_trace


def test_a_trace_has_a_track_a_thread_and_longer_spans_first(tmp_path):
    timeline = Timeline()
    timeline.add("kernel", "matmul", 10.5, 10.75, flops=8)
    other = threading.Thread(target=timeline.add, args=("read", "w", 10.6, 10.7), name="reader")
    other.start()
    other.join()
    timeline.add("run", "forward", 10.5, 11.0)
    path = tmp_path / "profile" / "trace.json"
    write_trace(timeline, path)
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sorted(tracks.values()) == [threading.current_thread().name, "reader"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [span["name"] for span in spans] == ["forward", "matmul", "w"]
    assert [span["ts"] for span in spans] == [0.0, 0.0, 1e6 * (10.6 - 10.5)]
    assert spans[1]["dur"] == 0.25e6 and spans[1]["args"] == {"flops": 8}
    assert tracks[spans[2]["tid"]] == "reader" and spans[0]["tid"] == spans[1]["tid"]
    assert [file.name for file in path.parent.iterdir()] == ["trace.json"]


def test_threads_of_one_name_share_a_track(tmp_path):
    timeline = Timeline()
    for start in (1.0, 2.0):
        work = threading.Thread(target=timeline.add, args=("step", "step", start, start + 0.5))
        work.start()
        work.join()
    timeline.threads = dict.fromkeys({span.thread for span in timeline.spans}, "wafer")
    write_trace(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["tid"] for event in events] == [0, 0, 0]
