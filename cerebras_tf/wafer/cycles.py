"""Cycles of work on a region of cores, by cause.

A product takes one vector multiply-add per weight on the cores that hold its activations: inputs
lie along one axis, tokens along the other. Sums over the inputs travel around a ring of cores.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace
from typing import Optional

from cerebras_tf.wafer.system import System
from cerebras_tf.wafer.workload import GRADIENT, WEIGHTS, LayerWork, Product

_MAX_INPUTS = 64  # largest number of inputs per core that is tried


@dataclass(frozen=True)
class Cycles:
    """Cycles by cause; causes do not overlap.

    Attributes:
        compute: multiply-adds at the full width of the cores.
        fabric: sums that travel between cores.
        sram: everything but products, at the SRAM's speed.
        bubbles: starting tensor instructions, vectors that do not fill the cores, filling and
            draining pipelines, waiting for the slowest stage.
        software: what a release's kernels take in addition: its one fitted constant.
        link: weights, gradients and spilled activations in transit, beyond what computation hides.
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
        """Cycles of all causes."""
        return float(sum(getattr(self, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, float]:
        """Cycles by cause."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def at(self, efficiency: float) -> Cycles:
        """Adds `software` for kernels of this efficiency."""
        return replace(self, software=self.total * (1 / efficiency - 1))


@dataclass(frozen=True)
class Layout:
    """How a product is laid out on the wafer while its weights stream past.

    Attributes:
        inputs_by_rows: whether inputs lie along the columns of cores (from row to row).
        inputs: per core.
        blocks: blocks of tokens next to each other.
        tokens: per core.
    """

    inputs_by_rows: bool
    inputs: int
    width: int
    blocks: int
    tokens: int
    cycles: Cycles


def product_cycles(product: Product, system: System) -> Cycles:
    """Cycles of a product on the whole wafer, weights streaming past."""
    return layout(product, system).cycles


def layout(product: Product, system: System) -> Layout:
    """The fastest layout with one axis for inputs and the other for tokens.

    If inputs leave columns free, several blocks of tokens are placed next to each other.
    """
    return _streamed(product, system.rows, system.columns, system["simd"], *_overheads(system))


def _overheads(system: System) -> tuple[float, float]:
    """Cycles to start an instruction, and to pass on a float32 sum."""
    return system["start_cycles"], 32 / (system["link_bits"] * system["ring_links"])


@functools.lru_cache(maxsize=4096)
def _streamed(
    product: Product, rows: int, columns: int, simd: float, start: float, hop: float
) -> Layout:
    best: Optional[Layout] = None
    ideal = product.multiply_adds / (rows * columns * simd)
    rows_of_activations = product.tokens * product.times
    for inputs_by_rows, across, along in ((True, columns, rows), (False, rows, columns)):
        least = math.ceil(product.inputs / along)
        for inputs in range(least, max(least, _MAX_INPUTS) + 1):
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
                best = Layout(inputs_by_rows, inputs, width, blocks, tokens, cycles)
            if width == 1:
                break
    assert best is not None
    return best


def resident_cycles(product: Product, cores: float, system: System) -> Cycles:
    """Cycles of a product on a region that holds its weights (pipelined mode).

    Every core holds a tile of k x n weights; per token it starts k instructions of length n and
    passes on n sums. The best tile has n = sqrt(weights per core x cycles to start / cycles per
    sum), which makes both overheads equal. Gradients of weights are summed where the weights are.
    """
    start, hop = _overheads(system)
    weights = product.inputs * product.outputs * product.times / cores
    overhead = math.sqrt(weights * start * hop) * product.tokens * product.density
    compute = product.multiply_adds / (cores * system["simd"])
    return Cycles(compute, 0.0 if product.kind == GRADIENT else overhead, bubbles=overhead)


def vector_cycles(elements: float, cores: float, system: System) -> Cycles:
    """Cycles of everything but products: bound by reading and writing SRAM."""
    moved = elements * system["activation_bytes"]
    return Cycles(sram=moved / (cores * (system["sram_bytes_read"] + system["sram_bytes_written"])))


def layer_cycles(layer: LayerWork, system: System) -> tuple[Cycles, Cycles]:
    """(forward, backward) of a layer on the whole wafer, without links."""
    directions = []
    for products, elements in zip((layer.forward, layer.backward), layer.vector_elements):
        found = vector_cycles(elements, system.cores, system)
        for product in products:
            found = found + product_cycles(product, system)
        directions.append(found)
    return directions[0], directions[1]


def stage_cycles(layer: LayerWork, cores: float, batch: int, system: System) -> Cycles:
    """Cycles per sample of a layer on its own region, forward and backward."""
    found = vector_cycles(sum(layer.vector_elements), cores, system)
    for product in (*layer.forward, *layer.backward):
        found = found + resident_cycles(product, cores, system)
    return found * (1 / batch)


def streamed_bytes(layer: LayerWork, system: System) -> float:
    """Bytes of a layer's weights, or gradients, on the links in one direction."""
    pruned = sum(
        (1 - p.density) * p.times * p.inputs * p.outputs for p in layer.forward if p.kind == WEIGHTS
    )
    return (layer.parameters - pruned) * system["weight_bits"] / 8
