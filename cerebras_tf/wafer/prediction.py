"""What a system would do with a workload: the result of the two execution modes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebras_tf.wafer.activations import Activations
from cerebras_tf.wafer.cycles import Cycles
from cerebras_tf.wafer.floorplan import Rectangle
from cerebras_tf.wafer.system import Release, System
from cerebras_tf.wafer.workload import Workload

STREAMING = "weight_streaming"
PIPELINED = "pipelined"

# What may bound a step, and its description in reports.
BOUNDS = {
    "compute": "multiply-adds",
    "fabric": "sums that travel over the fabric",
    "sram": "reading and writing SRAM",
    "bubbles": "starting instructions and waiting",
    "software": "what kernels of the release take in addition to the model's terms",
    "link": "the links to weight and activation servers",
    "host": "the host's loop",
}


@dataclass(frozen=True)
class LayerPrediction:
    """One layer.

    Attributes:
        forward: cycles per step of the forward pass; of both passes in pipelined mode.
        recomputation: cycles of the second forward pass.
        backward: cycles of the backward pass.
        bytes_in, bytes_out: bytes per step from and to weight and activation servers.
        sram_bytes_per_core: most SRAM that a core needs while the layer runs.
        cores: cores it is laid out on.
        utilisation: share of these cores' peak while it runs.
    """

    name: str
    parameters: int
    forward: Cycles
    recomputation: Cycles
    backward: Cycles
    bytes_in: float
    bytes_out: float
    sram_bytes_per_core: float
    cores: int
    utilisation: float

    @property
    def cycles(self) -> Cycles:
        """Cycles of all passes."""
        return self.forward + self.recomputation + self.backward


@dataclass(frozen=True)
class Prediction:
    """A step on a number of systems.

    A step may accumulate gradients of several micro-batches. Layers, cycles, memory and the host's
    time are those of each micro-batch; rates, samples and energy those of the step.

    Attributes:
        workload: a batch on each system; in pipelined mode on each replica.
        mode: STREAMING or PIPELINED.
        num_csx: systems, each with its own batch.
        replicas: copies of the model on a wafer, each with its own batch.
        layers: in forward order.
        host_s: seconds that the host needs per batch.
        faults: why the model does not fit; empty if it does.
    """

    system: System
    release: Release
    workload: Workload
    mode: str
    num_csx: int
    replicas: int
    layers: tuple[LayerPrediction, ...]
    cycles: Cycles
    activations: Activations
    host_s: float
    floorplan: tuple[Rectangle, ...] = ()
    faults: tuple[str, ...] = field(default=())
    micro_batches: int = 1

    @property
    def wafer_s(self) -> float:
        """Seconds per batch on the wafer."""
        return self.cycles.total / self.system["clock"]

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.micro_batches * max(self.wafer_s, self.host_s)

    @property
    def steps_per_s(self) -> float:
        return 1 / self.step_s

    @property
    def global_batch(self) -> int:
        """Samples per step over all systems, replicas and micro-batches."""
        return self.workload.batch * self.micro_batches * self.replicas * self.num_csx

    @property
    def tokens(self) -> int:
        """Tokens per step; 0 if samples have none."""
        return self.workload.tokens * self.micro_batches * self.replicas * self.num_csx

    @property
    def samples_per_s(self) -> float:
        """Samples per second on all systems."""
        return self.global_batch / self.step_s

    @property
    def flops(self) -> float:
        """Floating point operations per step and system, without recomputation."""
        return float(self.workload.flops * self.micro_batches * self.replicas)

    @property
    def utilisation(self) -> float:
        """Share of the dense peak that a step uses, without recomputation."""
        return self.flops / self.step_s / self.system.flops_per_s

    @property
    def bound(self) -> str:
        """The cause of most of the time, a key of BOUNDS; the fitted constant is not considered."""
        if self.host_s > self.wafer_s:
            return "host"
        causes = self.cycles.as_dict()
        causes.pop("software")
        return max(causes, key=lambda name: causes[name])

    @property
    def joules(self) -> float:
        """Upper bound of the energy per step of all wafers: their maximum power all the time."""
        return self.step_s * self.system["power"] * self.num_csx

    def phases(self) -> dict[str, tuple[float, float]]:
        """(least, most) seconds of what happens before and between steps."""
        size = 4.0 * self.workload.parameters
        saved = size + 4.0 * self.workload.state_elements
        send = size / self.system["send_bytes_per_s"]
        return {
            "sending initial weights": (send, send),
            "saving a checkpoint": (
                saved / self.system["save_bytes_per_s_most"],
                saved / self.system["save_bytes_per_s_least"],
            ),
        }


def _in_micro_batches(found: Prediction) -> str:
    return f" in {found.micro_batches} micro-batches" if found.micro_batches > 1 else ""


def one_line(found: Prediction) -> str:
    """A prediction in one line."""
    systems = f"{found.num_csx} {found.system.name}s" if found.num_csx > 1 else found.system.name
    text = (
        f"prediction for {'' if found.num_csx > 1 else 'a '}{systems} with release "
        f"{found.release.name}, {found.mode}: {found.steps_per_s:.3g} steps/s of "
        f"{found.global_batch:,} samples{_in_micro_batches(found)}, {found.utilisation:.1%} of the "
        f"peak, bound by {BOUNDS[found.bound]}"
    )
    if found.workload.density < 1:
        text += f"; pruning saves {1 - found.workload.density:.1%} of the work with weights"
    if found.activations.spilled_bytes:
        text += (
            f"; {found.activations.spilled_bytes / 1e9:.1f} GB of activations spill to "
            "activation servers"
        )
    return ". ".join([text, *(f"It does not fit: {fault}" for fault in found.faults)])
