"""Where activations stay between forward and backward pass, and what spills.

The wafer keeps all of them if it can. Else it keeps what crosses from one repeated block into the
next and computes the rest twice; of that, what does not fit beside the block at work goes to the
activation servers and comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tf.wafer.system import Machine
from cerebras_tf.wafer.workload import Workload


@dataclass(frozen=True)
class Activations:
    """What a step keeps.

    Attributes:
        kept_bytes: of activations kept from the forward to the backward pass.
        working_bytes: of the block at work.
        spilled_bytes: of those kept, what goes to activation servers.
        recomputes: whether the backward pass computes blocks a second time.
    """

    kept_bytes: float
    working_bytes: float
    spilled_bytes: float
    recomputes: bool

    @property
    def wafer_bytes(self) -> float:
        """Bytes on the wafer at the end of the forward pass."""
        return self.kept_bytes - self.spilled_bytes + self.working_bytes


def plan_activations(workload: Workload, machine: Machine) -> Activations:
    """What a step of weight streaming keeps on the wafer."""
    size, room = machine["activation_bytes"], machine["sram_bytes"]
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
    if everything <= room:
        return Activations(everything, 0.0, 0.0, False)
    kept = size * sum(segment[-1].boundary_elements for segment in segments)
    # A block larger than the wafer is cut by tokens; half of the wafer is left for what is kept.
    working = min(working, room / 2)
    return Activations(kept, working, max(0.0, kept + working - room), True)


def largest_batch(workload: Workload, machine: Machine) -> int:
    """The most samples that a system takes without spilling; 0 where one spills."""
    low, high = 0, 1
    while high < 2**20 and not plan_activations(workload.with_batch(high), machine).spilled_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if plan_activations(workload.with_batch(middle), machine).spilled_bytes:
            high = middle
        else:
            low = middle
    return low
