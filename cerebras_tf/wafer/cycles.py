"""Cycles that work takes on a region of cores, by cause.

A product is one vector multiply-add a weight on the cores that hold its activations: inputs lie
along one axis, tokens along the other. Sums over the inputs travel around a ring of cores.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace
from typing import Optional

from cerebras_tf.wafer.system import Machine
from cerebras_tf.wafer.workload import GRADIENT, WEIGHTS, LayerWork, Product

_MOST_INPUTS = 64  # inputs that a core holds at most, of those tried


@dataclass(frozen=True)
class Cycles:
    """Cycles by cause; those of all causes follow one another.

    Attributes:
        compute: multiply-adds at the full width of the cores.
        fabric: sums that travel between cores.
        sram: everything that is no product, at the SRAM's speed.
        bubbles: starting tensor instructions, vectors that do not fill the cores, pipelines that
            fill and drain, stages that wait for the slowest.
        software: what kernels of the release take beyond all that: its one fitted constant.
        link: weights, gradients and spilled activations on their way, beyond what work hides.
    """

    compute: float = 0.0
    fabric: float = 0.0
    sram: float = 0.0
    bubbles: float = 0.0
    software: float = 0.0
    link: float = 0.0

    def __add__(self, other: Cycles) -> Cycles:
        return Cycles(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, factor: float) -> Cycles:
        return Cycles(*(getattr(self, f.name) * factor for f in fields(self)))

    @property
    def total(self) -> float:
        """All of them."""
        return float(sum(getattr(self, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, float]:
        """Cycles by the name of their cause."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def at(self, efficiency: float) -> Cycles:
        """With what kernels of this efficiency take more."""
        return replace(self, software=self.total * (1 / efficiency - 1))


@dataclass(frozen=True)
class Layout:
    """How a product lies on the wafer while its weights stream past.

    Attributes:
        upright: whether inputs lie along the columns of cores (from row to row).
        inputs: a core.
        width: cores that the inputs take.
        blocks: blocks of tokens side by side.
        tokens: a core.
        cycles: what the product takes.
    """

    upright: bool
    inputs: int
    width: int
    blocks: int
    tokens: int
    cycles: Cycles


def product_cycles(product: Product, machine: Machine) -> Cycles:
    """Cycles of a product on the whole wafer, weights streaming past."""
    return layout(product, machine).cycles


def layout(product: Product, machine: Machine) -> Layout:
    """The fastest layout that one axis for inputs and the other for tokens allow.

    Where inputs leave columns free, several blocks of tokens lie side by side.
    """
    return _streamed(product, machine.rows, machine.columns, machine["simd"], *_overheads(machine))


def _overheads(machine: Machine) -> tuple[float, float]:
    """Cycles to start an instruction, and to pass a float32 sum on."""
    return machine["start_cycles"], 32 / (machine["link_bits"] * machine["ring_links"])


@functools.lru_cache(maxsize=4096)
def _streamed(
    product: Product, rows: int, columns: int, simd: float, start: float, hop: float
) -> Layout:
    best: Optional[Layout] = None
    ideal = product.multiply_adds / (rows * columns * simd)
    rows_of_activations = product.tokens * product.times
    for upright, across, along in ((True, columns, rows), (False, rows, columns)):
        least = math.ceil(product.inputs / along)
        for inputs in range(least, max(least, _MOST_INPUTS) + 1):
            width = math.ceil(product.inputs / inputs)
            blocks = along // width
            tokens = math.ceil(rows_of_activations / (across * blocks))
            weights = product.density * inputs * product.outputs
            busy = weights * (math.ceil(tokens / simd) + start)
            if product.kind == GRADIENT:
                summed = weights if tokens < rows_of_activations else 0.0
            else:
                summed = tokens * product.outputs if width > 1 else 0.0
            cycles = Cycles(ideal, summed * hop, bubbles=max(0.0, busy - ideal))
            if best is None or cycles.total < best.cycles.total:
                best = Layout(upright, inputs, width, blocks, tokens, cycles)
            if width == 1:
                break
    assert best is not None
    return best


def resident_cycles(product: Product, cores: float, machine: Machine) -> Cycles:
    """Cycles of a product on a region that keeps its weights (pipelined mode).

    Every core holds a tile of k x n weights; for a token it starts k instructions of length n and
    passes n sums on. The best tile has n = sqrt(weights a core x cycles to start / cycles a sum),
    so that both overheads are equal. Gradients of weights are summed where the weights are.
    """
    start, hop = _overheads(machine)
    weights = product.inputs * product.outputs * product.times / cores
    overhead = math.sqrt(weights * start * hop) * product.tokens * product.density
    compute = product.multiply_adds / (cores * machine["simd"])
    return Cycles(compute, 0.0 if product.kind == GRADIENT else overhead, bubbles=overhead)


def vector_cycles(elements: float, cores: float, machine: Machine) -> Cycles:
    """Cycles of work that is no product: bound by reading and writing SRAM."""
    moved = elements * machine["activation_bytes"]
    return Cycles(
        sram=moved / (cores * (machine["sram_bytes_read"] + machine["sram_bytes_written"]))
    )


def layer_cycles(layer: LayerWork, machine: Machine) -> tuple[Cycles, Cycles]:
    """(forward, backward) of a layer on the whole wafer, without links."""
    directions = []
    for products, elements in zip((layer.forward, layer.backward), layer.vector_elements):
        found = vector_cycles(elements, machine.cores, machine)
        for product in products:
            found = found + product_cycles(product, machine)
        directions.append(found)
    return directions[0], directions[1]


def stage_cycles(layer: LayerWork, cores: float, batch: int, machine: Machine) -> Cycles:
    """Cycles a sample of a layer on a region of its own, forward and backward."""
    found = vector_cycles(sum(layer.vector_elements), cores, machine)
    for product in (*layer.forward, *layer.backward):
        found = found + resident_cycles(product, cores, machine)
    return found * (1 / batch)


def streamed_bytes(layer: LayerWork, machine: Machine) -> float:
    """Bytes of a layer's weights, or gradients, on the links in one direction."""
    pruned = sum(
        (1 - p.density) * p.times * p.inputs * p.outputs for p in layer.forward if p.kind == WEIGHTS
    )
    return (layer.parameters - pruned) * machine["weight_bits"] / 8
