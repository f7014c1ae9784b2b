"""Times and bytes of the pictures are those of the prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cerebras_tf.report.pictures import floorplan_pixels, png
from cerebras_tf.report.schedule import memory, timeline
from cerebras_tf.wafer.streaming import predict_streaming
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.transformer import transformer

SYSTEM = load_system()


def prediction(batch=60):
    workload = transformer("13b", batch, 5120, 40, 40, 20480, 50257, 2048)
    return predict_streaming(workload, SYSTEM)


@pytest.mark.parametrize("batch", [1, 60])
def test_the_wafer_is_busy_from_the_first_to_the_last_moment(batch):
    found = prediction(batch)
    at = 0.0
    for item in timeline(found):
        if item.lane == "wafer":
            assert item.start_s == pytest.approx(at)
            at += item.seconds
    assert at == pytest.approx(found.wafer_s)


def test_streams_move_the_bytes_of_the_prediction():
    found = prediction()
    moved = {"weights in": 0.0, "gradients out": 0.0}
    for item in timeline(found):
        if item.lane in moved:
            moved[item.lane] += item.seconds * SYSTEM.io_bytes_per_s
    assert moved["weights in"] == pytest.approx(sum(item.bytes_in for item in found.layers))
    assert moved["gradients out"] == pytest.approx(sum(item.bytes_out for item in found.layers))


def test_memory_grows_to_what_is_kept_and_ends_empty():
    found = prediction()
    moments = memory(found)
    assert moments[-1].at_s == pytest.approx(found.wafer_s)
    peak = max(m.kept_bytes + m.spilled_bytes for m in moments)
    assert peak == pytest.approx(found.activations.kept_bytes)
    assert max(m.spilled_bytes for m in moments) == pytest.approx(found.activations.spilled_bytes)
    assert moments[-1].kept_bytes == pytest.approx(0, abs=1)
    assert all(m.kept_bytes + m.working_bytes <= 1.001 * SYSTEM["sram_bytes"] for m in moments)


def test_an_evaluation_keeps_no_activations():
    trained = prediction(1).workload
    layers = tuple(replace(layer, backward=()) for layer in trained.layers)
    found = predict_streaming(replace(trained, layers=layers), SYSTEM)
    moments = memory(found)
    assert not any(m.kept_bytes or m.spilled_bytes for m in moments)
    assert 0 < max(m.working_bytes for m in moments) <= found.activations.working_bytes


def test_the_picture_has_a_dot_a_core():
    pixels = floorplan_pixels(prediction())
    assert pixels.shape == (SYSTEM.rows, SYSTEM.columns, 3)
    assert png(pixels).startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.tf
def test_the_picture_can_be_read_by_others():
    tf = pytest.importorskip("tensorflow")
    pixels = floorplan_pixels(prediction())
    np.testing.assert_array_equal(tf.io.decode_png(png(pixels)).numpy(), pixels)
