"""What a machine would do with a workload: the result of the two execution modes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebras_tf.wafer.activations import Activations
from cerebras_tf.wafer.cycles import Cycles
from cerebras_tf.wafer.floorplan import Rectangle
from cerebras_tf.wafer.system import Machine, Release
from cerebras_tf.wafer.workload import Workload

STREAMING = "weight_streaming"
PIPELINED = "pipelined"

# What may bound a step, and how a reader is told.
BOUNDS = {
    "compute": "multiply-adds",
    "fabric": "sums that travel over the fabric",
    "sram": "reading and writing SRAM",
    "bubbles": "starting instructions and waiting",
    "software": "what kernels of the release take beyond the machine's terms",
    "link": "the links to weight and activation servers",
    "host": "the host's loop",
}


@dataclass(frozen=True)
class LayerPrediction:
    """One layer.

    Attributes:
        name: of the layer.
        parameters: its weights.
        forward: cycles a step of the forward pass; of both passes in pipelined mode.
        again: cycles of computing the forward pass a second time.
        backward: cycles of the backward pass.
        bytes_in: bytes a step from weight and activation servers.
        bytes_out: bytes a step to them.
        sram_bytes_per_core: most SRAM that a core needs while the layer is at work.
        cores: cores it is laid out on.
        utilisation: share of these cores' peak while it is at work.
    """

    name: str
    parameters: int
    forward: Cycles
    again: Cycles
    backward: Cycles
    bytes_in: float
    bytes_out: float
    sram_bytes_per_core: float
    cores: int
    utilisation: float

    @property
    def cycles(self) -> Cycles:
        """Of all passes."""
        return self.forward + self.again + self.backward


@dataclass(frozen=True)
class Prediction:
    """A step on a number of systems.

    A step may add up the gradients of several batches, its micro-batches. Layers, cycles, memory
    and the host's time are those of each; rates, samples and energy those of the step.

    Attributes:
        machine: what it runs on.
        release: the software it models.
        workload: a batch on each system; on each replica in pipelined mode.
        mode: STREAMING or PIPELINED.
        num_csx: systems, each with a batch of its own.
        replicas: copies on a wafer, each with a batch of its own.
        layers: in forward order.
        cycles: of a batch, by cause.
        activations: what is kept and spilled.
        host_s: seconds that the host needs a batch.
        floorplan: where layers lie.
        faults: why it does not fit; empty where it does.
        micro_batches: batches of a step, one after the other on each system.
    """

    machine: Machine
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
        """Seconds a batch on the wafer."""
        return self.cycles.total / self.machine["clock"]

    @property
    def step_s(self) -> float:
        """Seconds a step."""
        return self.micro_batches * max(self.wafer_s, self.host_s)

    @property
    def steps_per_s(self) -> float:
        """Steps a second."""
        return 1 / self.step_s

    @property
    def global_batch(self) -> int:
        """Samples a step on all systems and replicas."""
        return self.workload.batch * self.micro_batches * self.replicas * self.num_csx

    @property
    def tokens(self) -> int:
        """Tokens a step on all systems and replicas; 0 where samples have none."""
        return self.workload.tokens * self.micro_batches * self.replicas * self.num_csx

    @property
    def samples_per_s(self) -> float:
        """Samples a second on all systems."""
        return self.global_batch / self.step_s

    @property
    def flops(self) -> float:
        """Floating point operations a step and system, nothing computed twice."""
        return float(self.workload.flops * self.micro_batches * self.replicas)

    @property
    def utilisation(self) -> float:
        """Share of the dense peak that a step uses; what is computed twice does not count."""
        return self.flops / self.step_s / self.machine.flops_per_s

    @property
    def bound(self) -> str:
        """A key of BOUNDS: the cause of most of the time, the fitted constant left aside."""
        if self.host_s > self.wafer_s:
            return "host"
        causes = self.cycles.as_dict()
        causes.pop("software")
        return max(causes, key=lambda name: causes[name])

    @property
    def joules(self) -> float:
        """Energy a step of all wafers, at most: their highest power all the time."""
        return self.step_s * self.machine["power"] * self.num_csx

    def phases(self) -> dict[str, tuple[float, float]]:
        """(least, most) seconds of what comes before and between steps."""
        size = 4.0 * self.workload.parameters
        saved = size + 4.0 * self.workload.state_elements
        send = size / self.machine["send_bytes_per_s"]
        return {
            "sending initial weights": (send, send),
            "saving a checkpoint": (
                saved / self.machine["save_bytes_per_s_most"],
                saved / self.machine["save_bytes_per_s_least"],
            ),
        }


def _in_micro_batches(found: Prediction) -> str:
    return f" in {found.micro_batches} micro-batches" if found.micro_batches > 1 else ""


def one_line(found: Prediction) -> str:
    """A prediction in one line."""
    systems = f"{found.num_csx} {found.machine.name}s" if found.num_csx > 1 else found.machine.name
    text = (
        f"prediction for {'' if found.num_csx > 1 else 'a '}{systems} with release "
        f"{found.release.name}, {found.mode}: {found.steps_per_s:.3g} steps/s of "
        f"{found.global_batch:,} samples{_in_micro_batches(found)}, {found.utilisation:.1%} of the "
        f"peak, bound by {BOUNDS[found.bound]}"
    )
    if found.workload.density < 1:
        text += f"; pruning leaves out {1 - found.workload.density:.1%} of the work with weights"
    if found.activations.spilled_bytes:
        text += (
            f"; {found.activations.spilled_bytes / 1e9:.1f} GB of activations spill to "
            "activation servers"
        )
    return ". ".join([text, *(f"It does not fit: {fault}" for fault in found.faults)])
