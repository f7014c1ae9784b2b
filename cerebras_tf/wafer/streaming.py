"""Weight streaming mode: layers run one after another on the whole wafer; weights stream past."""

from __future__ import annotations

from typing import Optional

from cerebras_tf.wafer.activations import Activations, plan_activations
from cerebras_tf.wafer.cycles import Cycles, layer_cycles, layout, streamed_bytes
from cerebras_tf.wafer.floorplan import Rectangle
from cerebras_tf.wafer.prediction import STREAMING, LayerPrediction, Prediction
from cerebras_tf.wafer.system import System
from cerebras_tf.wafer.workload import LayerWork, Workload


def predict_streaming(
    workload: Workload, system: System, release: Optional[str] = None, num_csx: int = 1
) -> Prediction:
    """A step of weight streaming.

    Weights, gradients and spilled activations travel while a layer computes; time beyond that
    counts as link time. The update runs in MemoryX during the next forward pass.

    Args:
        workload: what runs on each system.
        release: the software; None: the system's default.
        num_csx: systems. Their gradients are summed on the way, so the step takes no longer.
    """
    chosen = system.release(release)
    efficiency = system.efficiency(chosen)
    kept = plan_activations(workload, system)
    spilled = kept.spilled_bytes / kept.kept_bytes if kept.kept_bytes else 0.0
    last = {id(segment[-1]) for segment in workload.segments()}
    layers = []
    for layer in workload.layers:
        spill = 0.0
        if id(layer) in last:
            spill = spilled * layer.boundary_elements * system["activation_bytes"]
        layers.append(_layer(layer, workload, system, kept, spill, efficiency))
    total = Cycles()
    for item in layers:
        total = total + item.cycles
    host_s = max(system.host_step_s(chosen), workload.input_bytes / system.io_bytes_per_s)
    return Prediction(
        system,
        chosen,
        workload,
        STREAMING,
        num_csx,
        1,
        tuple(layers),
        total,
        kept,
        host_s,
        _floorplan(workload, system),
        _faults(kept, system),
    )


def _layer(
    layer: LayerWork,
    workload: Workload,
    system: System,
    kept: Activations,
    spill: float,
    efficiency: float,
) -> LayerPrediction:
    forward, backward = (found.at(efficiency) for found in layer_cycles(layer, system))
    weights = streamed_bytes(layer, system)
    recomputation = forward if kept.recomputes and layer.backward else Cycles()
    trains = workload.trains
    first = _with_link(forward, max(weights, spill), system)
    second = backward
    if trains:
        # Recomputation and the backward pass use the weights while they stream past once.
        moved = max(weights + spill, weights)
        hidden = recomputation.total + backward.total
        late = max(0.0, _link_cycles(moved, system) - hidden)
        second = backward + Cycles(link=late)
    passes = first + recomputation + second
    used = layer.flops / 2 / system["simd"] / system.cores
    inner = system["activation_bytes"] * (layer.inner_elements + layer.boundary_elements)
    return LayerPrediction(
        layer.name,
        layer.parameters,
        first,
        recomputation,
        second,
        weights * (2 if trains else 1) + spill,
        (weights if trains else 0.0) + spill,
        min(kept.kept_bytes - kept.spilled_bytes + inner, system["sram_bytes"]) / system.cores,
        system.cores,
        used / passes.total if passes.total else 0.0,
    )


def _link_cycles(size: float, system: System) -> float:
    return size / system.io_bytes_per_s * system["clock"]


def _with_link(work: Cycles, size: float, system: System) -> Cycles:
    return work + Cycles(link=max(0.0, _link_cycles(size, system) - work.total))


def _faults(kept: Activations, system: System) -> tuple[str, ...]:
    capacity = system["sram_bytes"]
    if kept.working_bytes <= capacity:
        return ()
    return (
        f"a layer at work needs {kept.working_bytes / 1e9:.1f} GB; the wafer has "
        f"{capacity / 1e9:.1f} GB. Lower the batch.",
    )


def _floorplan(workload: Workload, system: System) -> tuple[Rectangle, ...]:
    """Blocks of tokens of the layer with most work, as laid out on the wafer."""
    layer = max(workload.layers, key=lambda layer: layer.flops)
    products = [p for p in layer.forward if p.kind == "weights"] or list(layer.forward)
    if not products:
        return ()
    product = max(products, key=lambda product: product.flops)
    found = layout(product, system)
    blocks = []
    for number in range(found.blocks):
        first, name = number * found.width, f"{layer.name}, tokens {number + 1}/{found.blocks}"
        if found.inputs_by_rows:
            blocks.append(Rectangle(name, 0, first, system.columns, found.width))
        else:
            blocks.append(Rectangle(name, first, 0, found.width, system.rows))
    return tuple(
        Rectangle(r.name, r.x, r.y, r.width, r.height, 0, found.cycles.compute / found.cycles.total)
        for r in blocks
    )
