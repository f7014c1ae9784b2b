"""Pipelined mode: every layer has a rectangle of its own, and samples flow through all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from cerebras_tf.errors import CapacityError
from cerebras_tf.wafer.activations import Activations
from cerebras_tf.wafer.cycles import Cycles, stage_cycles
from cerebras_tf.wafer.floorplan import Rectangle, StageTime, balanced_cores, lay_out
from cerebras_tf.wafer.prediction import PIPELINED, LayerPrediction, Prediction
from cerebras_tf.wafer.system import Machine
from cerebras_tf.wafer.workload import LayerWork, Workload


def predict_pipelined(
    workload: Workload, machine: Machine, release: Optional[str] = None, multireplica: bool = False
) -> Prediction:
    """A step of pipelined mode, on one system.

    Args:
        workload: what runs on each copy of the model.
        machine: what it runs on.
        release: the software; the machine's default for None.
        multireplica: whether several copies may lie on the wafer, as many as are fastest; each
            takes a batch of its own, and their weights are synchronised every step.
    """
    best = predict_replicas(workload, machine, release, 1)
    if not multireplica or not workload.trains:
        return best
    for copies in range(2, int(machine["most_replicas"]) + 1):
        found = predict_replicas(workload, machine, release, copies)
        if not found.faults and found.samples_per_s > best.samples_per_s:
            best = found
    return best


def predict_split(
    workload: Workload, machine: Machine, release: Optional[str] = None
) -> Prediction:
    """A step in which copies share the batch: as many as divide it and are fastest."""
    best = predict_replicas(workload, machine, release, 1)
    for copies in range(2, min(int(machine["most_replicas"]), workload.batch) + 1):
        if workload.batch % copies == 0:
            part = workload.with_batch(workload.batch // copies)
            found = predict_replicas(part, machine, release, copies)
            if not found.faults and found.samples_per_s > best.samples_per_s:
                best = found
    return best


def predict_replicas(
    workload: Workload, machine: Machine, release: Optional[str], copies: int
) -> Prediction:
    """A step with a given number of copies."""
    chosen = machine.release(release)
    efficiency = machine.efficiency(chosen)
    batch = workload.batch
    plans = _floorplan(workload, machine, copies)
    mine = plans[: len(workload.layers)]
    stages = [
        stage_cycles(layer, place.cores, batch, machine)
        for layer, place in zip(workload.layers, mine)
    ]
    slowest = max(stages, key=lambda stage: stage.total)
    passes = 2 if workload.trains else 1
    fill = passes * len(stages) - 1
    total = slowest * batch + Cycles(bubbles=slowest.total * fill)
    if copies > 1:  # gradients go around a ring of copies, once to sum and once to spread
        sums = 2 * workload.parameters * copies / machine.cores
        total = total + Cycles(fabric=sums * 32 / machine["link_bits"])
    total = total.at(efficiency)
    layers = [
        _layer(layer, place, stage.at(efficiency) * batch, total, held)
        for layer, place, stage, held in zip(
            workload.layers, mine, stages, _held(workload, machine)
        )
    ]
    needed = copies * sum(_held(workload, machine))
    host_s = max(
        machine.host_step_s(chosen), copies * workload.input_bytes / machine.io_bytes_per_s
    )
    plans = [
        replace(place, utilisation=layers[i % len(layers)].utilisation)
        for i, place in enumerate(plans)
    ]
    return Prediction(
        machine,
        chosen,
        workload,
        PIPELINED,
        1,
        copies,
        tuple(layers),
        total,
        Activations(0.0, needed, 0.0, False),
        host_s,
        tuple(plans),
        _faults(needed, machine, copies),
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


def _floorplan(workload: Workload, machine: Machine, copies: int) -> list[Rectangle]:
    """Rectangles of all copies, one copy after the other; copies lie side by side."""
    alone = [stage_cycles(layer, 1.0, workload.batch, machine) for layer in workload.layers]
    room = machine.sram_per_core * (1 - machine["code_share"])
    times = [
        StageTime(item.compute + item.sram, item.fabric + item.bubbles, max(1.0, held / room))
        for item, held in zip(alone, _held(workload, machine))
    ]
    shares = balanced_cores(times, machine.cores // copies)
    names = [layer.name for layer in workload.layers]
    found: list[Rectangle] = []
    edges = [round(machine.columns * i / copies) for i in range(copies + 1)]
    for copy, (left, right) in enumerate(zip(edges, edges[1:])):
        plan = lay_out(names, shares, left, 0, right - left, machine.rows)
        found += [replace(place, replica=copy) for place in plan]
    return found


def _held(workload: Workload, machine: Machine) -> list[float]:
    """Bytes that every layer keeps: weights, their training state, activations in flight.

    A 16-bit weight, in float32 the weight and its gradient, and the optimizer's slots, spread over
    layers by their weights. A layer keeps activations of the samples that are between its forward
    and its backward pass.
    """
    slot, size, trains = machine["bytes_per_slot"], machine["activation_bytes"], workload.trains
    each = workload.state_elements / max(workload.parameters, 1)
    per_weight = 2 + (slot * (2 + each) if trains else 0)
    found, count = [], len(workload.layers)
    for i, layer in enumerate(workload.layers):
        samples = min(workload.batch, 2 * (count - i) - 1) if trains else 1
        kept = size * (layer.inner_elements + layer.boundary_elements) / workload.batch
        found.append(layer.parameters * per_weight + samples * kept)
    return found


def _faults(needed: float, machine: Machine, copies: int) -> tuple[str, ...]:
    room = machine["sram_bytes"] * (1 - machine["code_share"])
    if needed <= room:
        return ()
    return (
        f"weights, optimizer state and activations of {copies} copies need {needed / 1e9:.1f} GB "
        f"of the wafer's {room / 1e9:.1f} GB beside programs. Use weight_streaming"
        f"{', or fewer copies' if copies > 1 else ''}.",
    )


def refuse_misfit(prediction: Prediction) -> None:
    """Raises CapacityError where a prediction says that a model does not fit on the machine."""
    if prediction.faults:
        raise CapacityError(f"{prediction.machine.name}: {' '.join(prediction.faults)}")
