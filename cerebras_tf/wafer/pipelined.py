"""Pipelined mode: every layer has its own rectangle of cores; samples flow through all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from cerebras_tf.wafer.activations import Activations
from cerebras_tf.wafer.cycles import Cycles, stage_cycles
from cerebras_tf.wafer.floorplan import Rectangle, StageTime, balanced_cores, lay_out
from cerebras_tf.wafer.prediction import PIPELINED, LayerPrediction, Prediction
from cerebras_tf.wafer.system import System
from cerebras_tf.wafer.workload import LayerWork, Workload


def predict_pipelined(
    workload: Workload, system: System, release: Optional[str] = None, multireplica: bool = False
) -> Prediction:
    """A step of pipelined mode on one system.

    Args:
        workload: what runs on each replica.
        release: the software; None: the system's default.
        multireplica: whether the wafer may hold several replicas, as many as are fastest; each
            takes its own batch, and gradients are summed every step.
    """
    best = predict_replicas(workload, system, release, 1)
    if not multireplica or not workload.trains:
        return best
    for replicas in range(2, int(system["most_replicas"]) + 1):
        found = predict_replicas(workload, system, release, replicas)
        if not found.faults and found.samples_per_s > best.samples_per_s:
            best = found
    return best


def predict_split(workload: Workload, system: System, release: Optional[str] = None) -> Prediction:
    """A step in which replicas share the batch: as many as divide it and are fastest."""
    best = predict_replicas(workload, system, release, 1)
    for replicas in range(2, min(int(system["most_replicas"]), workload.batch) + 1):
        if workload.batch % replicas == 0:
            part = workload.with_batch(workload.batch // replicas)
            found = predict_replicas(part, system, release, replicas)
            if not found.faults and found.samples_per_s > best.samples_per_s:
                best = found
    return best


def predict_replicas(
    workload: Workload, system: System, release: Optional[str], replicas: int
) -> Prediction:
    """A step with a given number of replicas."""
    chosen = system.release(release)
    efficiency = system.efficiency(chosen)
    batch = workload.batch
    plans = _floorplan(workload, system, replicas)
    mine = plans[: len(workload.layers)]
    stages = [
        stage_cycles(layer, place.cores, batch, system)
        for layer, place in zip(workload.layers, mine)
    ]
    slowest = max(stages, key=lambda stage: stage.total)
    passes = 2 if workload.trains else 1
    fill = passes * len(stages) - 1
    total = slowest * batch + Cycles(bubbles=slowest.total * fill)
    if replicas > 1:  # ring all-reduce of gradients: reduce-scatter, then all-gather
        sums = 2 * workload.parameters * replicas / system.cores
        total = total + Cycles(fabric=sums * 32 / system["link_bits"])
    total = total.at(efficiency)
    layers = [
        _layer(layer, place, stage.at(efficiency) * batch, total, held)
        for layer, place, stage, held in zip(
            workload.layers, mine, stages, _held_bytes(workload, system)
        )
    ]
    needed = replicas * sum(_held_bytes(workload, system))
    host_s = max(
        system.host_step_s(chosen), replicas * workload.input_bytes / system.io_bytes_per_s
    )
    plans = [
        replace(place, utilisation=layers[i % len(layers)].utilisation)
        for i, place in enumerate(plans)
    ]
    return Prediction(
        system,
        chosen,
        workload,
        PIPELINED,
        1,
        replicas,
        tuple(layers),
        total,
        Activations(0.0, needed, 0.0, False),
        host_s,
        tuple(plans),
        _faults(needed, system, replicas),
    )


def _layer(
    layer: LayerWork, place: Rectangle, work: Cycles, step: Cycles, held: float
) -> LayerPrediction:
    waiting = Cycles(bubbles=max(0.0, step.total - work.total))
    return LayerPrediction(
        layer.name,
        layer.parameters,
        work + waiting,
        Cycles(),
        Cycles(),
        0.0,
        0.0,
        held / place.cores,
        place.cores,
        work.compute / step.total,
    )


def _floorplan(workload: Workload, system: System, replicas: int) -> list[Rectangle]:
    """Rectangles of all replicas, next to each other."""
    alone = [stage_cycles(layer, 1.0, workload.batch, system) for layer in workload.layers]
    capacity = system.sram_per_core * (1 - system["code_share"])
    times = [
        StageTime(item.compute + item.sram, item.fabric + item.bubbles, max(1.0, held / capacity))
        for item, held in zip(alone, _held_bytes(workload, system))
    ]
    shares = balanced_cores(times, system.cores // replicas)
    names = [layer.name for layer in workload.layers]
    found: list[Rectangle] = []
    edges = [round(system.columns * i / replicas) for i in range(replicas + 1)]
    for replica, (left, right) in enumerate(zip(edges, edges[1:])):
        plan = lay_out(names, shares, left, 0, right - left, system.rows)
        found += [replace(place, replica=replica) for place in plan]
    return found


def _held_bytes(workload: Workload, system: System) -> list[float]:
    """Bytes that every layer holds: weights, training state, activations in flight.

    A 16-bit weight; in training also weight, gradient and optimizer slots in float32. A layer keeps
    activations of the samples between its forward and its backward pass.
    """
    slot, size, trains = system["bytes_per_slot"], system["activation_bytes"], workload.trains
    each = workload.state_elements / max(workload.parameters, 1)
    per_weight = 2 + (slot * (2 + each) if trains else 0)
    found, count = [], len(workload.layers)
    for i, layer in enumerate(workload.layers):
        samples = min(workload.batch, 2 * (count - i) - 1) if trains else 1
        kept = size * (layer.inner_elements + layer.boundary_elements) / workload.batch
        found.append(layer.parameters * per_weight + samples * kept)
    return found


def _faults(needed: float, system: System, replicas: int) -> tuple[str, ...]:
    capacity = system["sram_bytes"] * (1 - system["code_share"])
    if needed <= capacity:
        return ()
    return (
        f"weights, optimizer state and activations of {replicas} replicas need "
        f"{needed / 1e9:.1f} GB of the wafer's {capacity / 1e9:.1f} GB next to programs. Use "
        f"weight_streaming{', or fewer replicas' if replicas > 1 else ''}.",
    )
