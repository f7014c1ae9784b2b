"""Activations between forward and backward pass: what stays on the wafer, is recomputed, or spills.

The wafer keeps all of them if they fit. Otherwise it keeps one tensor between repeated blocks and
recomputes the rest; of those tensors, what does not fit next to the running block is spilled to the
activation servers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tf.wafer.system import System
from cerebras_tf.wafer.workload import Workload


@dataclass(frozen=True)
class Activations:
    """What a step keeps.

    Attributes:
        kept_bytes: activations kept from the forward to the backward pass.
        working_bytes: of the running block.
        spilled_bytes: part of kept_bytes on activation servers.
        recomputes: whether the backward pass recomputes blocks.
    """

    kept_bytes: float
    working_bytes: float
    spilled_bytes: float
    recomputes: bool


def plan_activations(workload: Workload, system: System) -> Activations:
    """What a step in weight streaming mode keeps on the wafer."""
    size, capacity = system["activation_bytes"], system["sram_bytes"]
    segments = list(workload.segments())
    working = size * max(
        sum(layer.inner_elements + layer.boundary_elements for layer in segment)
        for segment in segments
    )
    if not workload.trains:
        return Activations(0.0, working, 0.0, False)
    everything = size * sum(
        layer.inner_elements + layer.boundary_elements for layer in workload.layers
    )
    if everything <= capacity:
        return Activations(everything, 0.0, 0.0, False)
    kept = size * sum(segment[-1].boundary_elements for segment in segments)
    # A block larger than the wafer is split by tokens; half of the wafer is left for kept
    # activations.
    working = min(working, capacity / 2)
    return Activations(kept, working, max(0.0, kept + working - capacity), True)


def largest_batch(workload: Workload, system: System) -> int:
    """The most samples that a system takes without spilling; 0 if one sample spills."""
    low, high = 0, 1
    while high < 2**20 and not plan_activations(workload.with_batch(high), system).spilled_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if plan_activations(workload.with_batch(middle), system).spilled_bytes:
            high = middle
        else:
            low = middle
    return low
