"""When what happens in a step of weight streaming: intervals of the wafer and of its links."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tf.wafer.prediction import LayerPrediction, Prediction


@dataclass(frozen=True)
class Interval:
    """Something that lasts.

    Attributes:
        lane: where: "weights in", "wafer" or "gradients out".
        kind: "forward", "again", "backward" or "stream".
        name: what a reader is told of it.
        start_s: seconds from the start of the step.
        seconds: how long it lasts.
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
        kept_bytes: activations that wait on the wafer for their backward pass.
        working_bytes: of the layer at work.
        spilled_bytes: on activation servers.
    """

    at_s: float
    kept_bytes: float
    working_bytes: float
    spilled_bytes: float


def timeline(found: Prediction) -> list[Interval]:
    """Intervals of a step: forward through the layers, then back."""
    clock, rate = found.machine["clock"], found.machine.io_bytes_per_s
    at, told = 0.0, []
    trains = found.workload.trains
    for layer in found.layers:
        seconds = layer.forward.total / clock
        told.append(Interval("wafer", "forward", f"{layer.name}, forward", at, seconds))
        weights = _weight_bytes(layer, found)
        told.append(Interval("weights in", "stream", f"{layer.name}, weights", at, weights / rate))
        spill = layer.bytes_out - (weights if trains else 0.0)
        if spill > 0:
            told.append(
                Interval("gradients out", "spill", f"{layer.name}, spilled", at, spill / rate)
            )
        at += seconds
    for layer in reversed(found.layers) if trains else ():
        weights = _weight_bytes(layer, found)
        coming = layer.bytes_in - weights
        told.append(Interval("weights in", "stream", f"{layer.name}, weights", at, coming / rate))
        if layer.again.total:
            seconds = layer.again.total / clock
            told.append(Interval("wafer", "again", f"{layer.name}, forward again", at, seconds))
            at += seconds
        seconds = layer.backward.total / clock
        told.append(Interval("wafer", "backward", f"{layer.name}, backward", at, seconds))
        told.append(
            Interval("gradients out", "stream", f"{layer.name}, gradients", at, weights / rate)
        )
        at += seconds
    return told


def _weight_bytes(layer: LayerPrediction, found: Prediction) -> float:
    """Bytes of a layer's weights in one direction, spilled activations left out."""
    if not found.workload.trains:
        return layer.bytes_in
    return layer.bytes_in - layer.bytes_out


def memory(found: Prediction) -> list[Moment]:
    """Activations over a step."""
    size, clock = found.machine["activation_bytes"], found.machine["clock"]
    plan, workload = found.activations, found.workload
    spilled = plan.spilled_bytes / plan.kept_bytes if plan.kept_bytes else 0.0
    last = {id(segment[-1]) for segment in workload.segments()}
    keeps = []
    for layer in workload.layers:
        if not workload.trains:
            keeps.append(0.0)
        elif not plan.recomputes:
            keeps.append(size * (layer.inner_elements + layer.boundary_elements))
        else:
            keeps.append(size * layer.boundary_elements if id(layer) in last else 0.0)
    at, kept, told = 0.0, 0.0, [Moment(0.0, 0.0, 0.0, 0.0)]
    inner = [size * (layer.inner_elements + layer.boundary_elements) for layer in workload.layers]
    most = found.machine["sram_bytes"] / (2 if workload.trains else 1)
    working = [min(size, most) if plan.recomputes or not workload.trains else 0.0 for size in inner]
    for item, keep, work in zip(found.layers, keeps, working):
        at += item.forward.total / clock
        kept += keep
        told.append(Moment(at, kept * (1 - spilled), work, kept * spilled))
    if workload.trains:
        for item, keep, work in zip(found.layers[::-1], keeps[::-1], working[::-1]):
            at += (item.again.total + item.backward.total) / clock
            kept -= keep
            told.append(Moment(at, kept * (1 - spilled), work, kept * spilled))
    return told
