"""Schedule of a weight streaming step: intervals of the wafer and its links; memory over time."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tf.wafer.prediction import LayerPrediction, Prediction


@dataclass(frozen=True)
class Interval:
    """A time span of one lane.

    Attributes:
        lane: "weights in", "wafer" or "gradients out".
        kind: "forward", "recompute", "backward", "stream" or "spill".
        start_s: seconds from the start of the step.
    """

    lane: str
    kind: str
    name: str
    start_s: float
    seconds: float


@dataclass(frozen=True)
class Moment:
    """Bytes of activations at the end of a layer's pass.

    Attributes:
        at_s: seconds from the start of the step.
        kept_bytes: on the wafer, for the backward pass.
    """

    at_s: float
    kept_bytes: float
    working_bytes: float
    spilled_bytes: float


def timeline(found: Prediction) -> list[Interval]:
    """Intervals of a step: forward through the layers, then back."""
    clock, rate = found.system["clock"], found.system.io_bytes_per_s
    at, intervals = 0.0, []
    trains = found.workload.trains
    for layer in found.layers:
        seconds = layer.forward.total / clock
        intervals.append(Interval("wafer", "forward", f"{layer.name}, forward", at, seconds))
        weights = _weight_bytes(layer, found)
        intervals.append(
            Interval("weights in", "stream", f"{layer.name}, weights", at, weights / rate)
        )
        spill = layer.bytes_out - (weights if trains else 0.0)
        if spill > 0:
            intervals.append(
                Interval("gradients out", "spill", f"{layer.name}, spilled", at, spill / rate)
            )
        at += seconds
    for layer in reversed(found.layers) if trains else ():
        weights = _weight_bytes(layer, found)
        coming = layer.bytes_in - weights
        intervals.append(
            Interval("weights in", "stream", f"{layer.name}, weights", at, coming / rate)
        )
        if layer.recomputation.total:
            seconds = layer.recomputation.total / clock
            intervals.append(
                Interval("wafer", "recompute", f"{layer.name}, recomputation", at, seconds)
            )
            at += seconds
        seconds = layer.backward.total / clock
        intervals.append(Interval("wafer", "backward", f"{layer.name}, backward", at, seconds))
        intervals.append(
            Interval("gradients out", "stream", f"{layer.name}, gradients", at, weights / rate)
        )
        at += seconds
    return intervals


def _weight_bytes(layer: LayerPrediction, found: Prediction) -> float:
    """Bytes of a layer's weights in one direction, without spilled activations."""
    if not found.workload.trains:
        return layer.bytes_in
    return layer.bytes_in - layer.bytes_out


def memory(found: Prediction) -> list[Moment]:
    """Activations over a step."""
    size, clock = found.system["activation_bytes"], found.system["clock"]
    plan, workload = found.activations, found.workload
    spilled = plan.spilled_bytes / plan.kept_bytes if plan.kept_bytes else 0.0
    last = {id(segment[-1]) for segment in workload.segments()}
    kept_by_layer = []
    for layer in workload.layers:
        if not workload.trains:
            kept_by_layer.append(0.0)
        elif not plan.recomputes:
            kept_by_layer.append(size * (layer.inner_elements + layer.boundary_elements))
        else:
            kept_by_layer.append(size * layer.boundary_elements if id(layer) in last else 0.0)
    at, kept, intervals = 0.0, 0.0, [Moment(0.0, 0.0, 0.0, 0.0)]
    inner = [size * (layer.inner_elements + layer.boundary_elements) for layer in workload.layers]
    most = found.system["sram_bytes"] / (2 if workload.trains else 1)
    working = [min(size, most) if plan.recomputes or not workload.trains else 0.0 for size in inner]
    for item, keep, work in zip(found.layers, kept_by_layer, working):
        at += item.forward.total / clock
        kept += keep
        intervals.append(Moment(at, kept * (1 - spilled), work, kept * spilled))
    if workload.trains:
        for item, keep, work in zip(found.layers[::-1], kept_by_layer[::-1], working[::-1]):
            at += (item.recomputation.total + item.backward.total) / clock
            kept -= keep
            intervals.append(Moment(at, kept * (1 - spilled), work, kept * spilled))
    return intervals
