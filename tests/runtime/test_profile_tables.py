"""What a profile says of times that are known."""

from __future__ import annotations

import re

import pytest

from cerebras_tf.ir.program import Cost, Instruction
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.profile_tables import bounds_of, sentence, tables
from cerebras_tf.runtime.profiler import LOOP_STEP, WAFER_STEP, Profiler, Timing

SPEEDS = Speeds(flops_per_s=1e12, bytes_per_s=1e10)


def timing(op, flops, moved, elapsed_s, layer="layer_0", direction="forward"):
    item = Instruction(op, (), (), {}, f"model/{op}", Cost(flops, moved, 0))
    return Timing(item, layer, direction, 0.0, elapsed_s, 2 * elapsed_s)


def profile(*timings, wafer_s, loop_s, stream_s=0.0):
    found = Profiler()
    found.timings.extend(timings)
    found.timeline.add("stream_in", "stream_in", 0.0, stream_s)
    found.timeline.add(WAFER_STEP, "step", 0.0, wafer_s)
    found.timeline.add(LOOP_STEP, "step", 0.0, loop_s)
    return found


def test_time_is_told_apart_by_what_the_limits_say():
    found = profile(
        timing("matmul", 4e11, 10**8, 0.8),
        timing("add", 10**6, 10**9, 0.2),
        wafer_s=1.1,
        loop_s=1.2,
        stream_s=0.05,
    )
    bounds = bounds_of(found, 2, SPEEDS)
    assert bounds == pytest.approx((0.4, 0.1, 0.025, 0.025, 0.05, 0.2, 0.05, 0.0))
    said = sentence(bounds)
    assert said.startswith("The step is bound by arithmetic, 67% of its 600 ms; ")
    assert "run at 50% of the limit; memory 17%" in said


@pytest.mark.parametrize(
    ("seconds", "cause"),
    [
        ({"wafer_s": 0.4, "loop_s": 3.0}, "time outside of the wafer"),
        ({"wafer_s": 3.0, "loop_s": 3.1}, "time between kernels"),
        ({"wafer_s": 3.0, "loop_s": 3.1, "stream_s": 2.5}, "moving weights"),
    ],
)
def test_other_causes_are_named(seconds, cause):
    found = profile(timing("matmul", 10**11, 10**6, 0.2), **seconds)
    assert f"bound by {cause}" in sentence(bounds_of(found, 1, SPEEDS))


def test_tables_add_up_calls_of_an_op_and_of_a_layer():
    found = profile(
        timing("matmul", 10**11, 10**8, 0.2, "layer_0"),
        timing("matmul", 10**11, 10**8, 0.3, "layer_1"),
        timing("add", 10**6, 10**9, 0.2, "layer_1", "backward"),
        wafer_s=0.8,
        loop_s=1.0,
    )
    text = tables(found, 1, SPEEDS, "some BLAS")
    assert "1000 GFLOP/s, 10 GB/s (some BLAS)" in text
    row, _ = re.findall(r"^matmul +(\S+) +(\S+) +(\S+) +(\S+) +(\S+) .* (\S+)$", text, re.M)
    assert row == ("2", "500", "50.0%", "400.0", "40%", "2.0")
    layers = re.findall(r"^(layer_\d, \w+) ", text, re.M)
    assert layers == ["layer_0, forward", "layer_1, forward", "layer_1, backward"]
    assert re.search(r"^outside of the wafer: input, session, hooks +200 ms +20.0%$", text, re.M)


def test_rows_that_are_left_out_are_counted():
    timings = [timing(f"op_{i}", 10**9, 10**6, 0.01) for i in range(20)]
    text = tables(profile(*timings, wafer_s=0.3, loop_s=0.3), 1, SPEEDS, "some BLAS")
    assert re.search(r"^8 others +80.00 +26.7%$", text, re.M)
