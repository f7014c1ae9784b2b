"""Weight streaming: every layer in turn has the whole wafer, and its weights stream past."""

from __future__ import annotations

from typing import Optional

from cerebras_tf.wafer.activations import Activations, plan_activations
from cerebras_tf.wafer.cycles import Cycles, layer_cycles, layout, streamed_bytes
from cerebras_tf.wafer.floorplan import Rectangle
from cerebras_tf.wafer.prediction import STREAMING, LayerPrediction, Prediction
from cerebras_tf.wafer.system import Machine
from cerebras_tf.wafer.workload import LayerWork, Workload


def predict_streaming(
    workload: Workload, machine: Machine, release: Optional[str] = None, num_csx: int = 1
) -> Prediction:
    """A step of weight streaming.

    Weights, gradients and spilled activations travel while a layer computes; what takes longer than
    that shows as time of the link. The update happens in MemoryX while the next forward pass runs.

    Args:
        workload: what runs on each system.
        machine: what it runs on.
        release: the software; the machine's default for None.
        num_csx: systems. Their gradients meet on the way, so the time of a step stays.
    """
    chosen = machine.release(release)
    efficiency = machine.efficiency(chosen)
    kept = plan_activations(workload, machine)
    spilled = kept.spilled_bytes / kept.kept_bytes if kept.kept_bytes else 0.0
    last = {id(segment[-1]) for segment in workload.segments()}
    layers = []
    for layer in workload.layers:
        spill = 0.0
        if id(layer) in last:
            spill = spilled * layer.boundary_elements * machine["activation_bytes"]
        layers.append(_layer(layer, workload, machine, kept, spill, efficiency))
    total = Cycles()
    for item in layers:
        total = total + item.cycles
    host_s = max(machine.host_step_s(chosen), workload.input_bytes / machine.io_bytes_per_s)
    return Prediction(
        machine,
        chosen,
        workload,
        STREAMING,
        num_csx,
        1,
        tuple(layers),
        total,
        kept,
        host_s,
        _floorplan(workload, machine),
        _faults(kept, machine),
    )


def _layer(
    layer: LayerWork,
    workload: Workload,
    machine: Machine,
    kept: Activations,
    spill: float,
    efficiency: float,
) -> LayerPrediction:
    forward, backward = (found.at(efficiency) for found in layer_cycles(layer, machine))
    weights = streamed_bytes(layer, machine)
    again = forward if kept.recomputes and layer.backward else Cycles()
    trains = workload.trains
    first = _with_link(forward, max(weights, spill), machine)
    second = backward
    if trains:
        # Computing twice and the backward pass use the weights while they pass once.
        moved = max(weights + spill, weights)
        hidden = again.total + backward.total
        late = max(0.0, _link_cycles(moved, machine) - hidden)
        second = backward + Cycles(link=late)
    passes = first + again + second
    used = layer.flops / 2 / machine["simd"] / machine.cores
    inner = machine["activation_bytes"] * (layer.inner_elements + layer.boundary_elements)
    return LayerPrediction(
        layer.name,
        layer.parameters,
        first,
        again,
        second,
        weights * (2 if trains else 1) + spill,
        (weights if trains else 0.0) + spill,
        min(kept.kept_bytes - kept.spilled_bytes + inner, machine["sram_bytes"]) / machine.cores,
        machine.cores,
        used / passes.total if passes.total else 0.0,
    )


def _link_cycles(size: float, machine: Machine) -> float:
    return size / machine.io_bytes_per_s * machine["clock"]


def _with_link(work: Cycles, size: float, machine: Machine) -> Cycles:
    return work + Cycles(link=max(0.0, _link_cycles(size, machine) - work.total))


def _faults(kept: Activations, machine: Machine) -> tuple[str, ...]:
    room = machine["sram_bytes"]
    if kept.working_bytes <= room:
        return ()
    return (
        f"a layer at work needs {kept.working_bytes / 1e9:.1f} GB; the wafer has "
        f"{room / 1e9:.1f} GB. Lower the batch.",
    )


def _floorplan(workload: Workload, machine: Machine) -> tuple[Rectangle, ...]:
    """Blocks of tokens of the layer with most work, as they lie on the wafer."""
    layer = max(workload.layers, key=lambda layer: layer.flops)
    products = [p for p in layer.forward if p.kind == "weights"] or list(layer.forward)
    if not products:
        return ()
    product = max(products, key=lambda product: product.flops)
    found = layout(product, machine)
    blocks = []
    for number in range(found.blocks):
        first, name = number * found.width, f"{layer.name}, tokens {number + 1}/{found.blocks}"
        if found.upright:
            blocks.append(Rectangle(name, 0, first, machine.columns, found.width))
        else:
            blocks.append(Rectangle(name, first, 0, found.width, machine.rows))
    return tuple(
        Rectangle(r.name, r.x, r.y, r.width, r.height, 0, found.cycles.compute / found.cycles.total)
        for r in blocks
    )
