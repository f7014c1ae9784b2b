"""Program -> workload: a step as input of the model of a real system.

Products keep their sizes; other instructions count the elements that they read and write. The
program must be without recomputation.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from cerebras_tf.ir.program import ARENA, Instruction, Program
from cerebras_tf.ir.schedule import Run
from cerebras_tf.ops.products import Places, ProductSize, products_of, sizes_at_bounds
from cerebras_tf.wafer.workload import GRADIENT, WEIGHTS, LayerWork, Product, Workload

_MAX_PERIOD = 8  # layers of a repeated block
_FLOAT_BYTES = 4  # of an element of a program


@dataclass
class _Sums:
    forward: list[Product] = field(default_factory=list)
    backward: list[Product] = field(default_factory=list)
    vector: list[int] = field(default_factory=lambda: [0, 0])
    boundary: int = 0
    inner: int = 0


def workload_of_program(
    program: Program,
    name: str,
    batch: Optional[int] = None,
    tokens: Optional[int] = None,
    density: Optional[Mapping[str, float]] = None,
    trainable: Optional[Collection[str]] = None,
) -> Workload:
    """The workload of a step.

    Args:
        program: the step, without recomputation.
        batch: samples of a batch; by default the first size of the largest feature.
        tokens: tokens of a batch, if any.
        density: share of a weight that is not zero, by name, if it is not 1; gradients are as
            dense.
        trainable: variables that are weights; others of a layer, such as sums of gradients over
            micro-batches, are state. None: all variables of layers are weights.
    """
    weights_of = [
        [name for name in layer.variables if trainable is None or name in trainable]
        for layer in program.layers
    ]
    dense = _Densities(program, density or {}, weights_of)
    sums: dict[int, _Sums] = defaultdict(_Sums)
    for entry in program.schedule:
        if isinstance(entry, Run) and entry.direction != "update":
            for item in program.bodies[entry.body]:
                _add(sums[max(entry.layer, 0)], item, entry, program, dense)
    _add_kept(sums, program)
    layers = []
    for number, layer in enumerate(program.layers):
        found = sums[number]
        weights = sum(_elements(program, name) for name in weights_of[number])
        layers.append(
            LayerWork(
                _numbered(layer.name, number),
                weights,
                tuple(found.forward),
                tuple(found.backward),
                (found.vector[0], found.vector[1]),
                found.boundary,
                found.inner,
            )
        )
    features = [program.slots[slot].type for slot in program.features.values()]
    bounded = [type for type in features if type.is_bounded]
    if batch is None:
        largest = max(bounded, key=lambda type: type.max_bytes, default=None)
        batch = (sizes_at_bounds(largest) if largest is not None and largest.rank else (1,))[0]
    state = sum(
        _elements(program, name)
        for layer, weights in zip(program.layers, weights_of)
        for name in {*layer.slots, *layer.variables} - {*weights}
    )
    size = sum(type.max_bytes for type in bounded)
    return Workload(name, tuple(layers), batch, state, size, tokens or 0, _period(program))


def _numbered(name: str, number: int) -> str:
    return f"{number} {name}"


def _elements(program: Program, name: str) -> int:
    """Elements of a variable; 0 for scalars such as counters."""
    type = program.slots[program.variables[name]].type
    return math.prod(sizes_at_bounds(type)) if type.rank else 0


class _Densities:
    """Densities of the weights that products read, and of the gradients that they compute."""

    def __init__(
        self, program: Program, density: Mapping[str, float], weights: Sequence[Sequence[str]]
    ) -> None:
        self._base_of = program.base_of
        slots = program.variables
        self._of_slot = {slots[name]: density[name] for name in density.keys() & slots.keys()}
        self._of_layer: dict[int, dict[int, list[float]]] = {}
        for number, names in enumerate(weights) if density else ():
            found: dict[int, list[float]] = {}
            for name in names:
                size = math.prod(sizes_at_bounds(program.slots[program.variables[name]].type))
                found.setdefault(size, []).append(density.get(name, 1.0))
            self._of_layer[number] = found

    def of(self, size: ProductSize, layer: int, operands: Sequence[int]) -> float:
        """Density of a product; for a gradient the mean of the layer's weights of that size."""
        if size.kind == WEIGHTS:
            found = [self._of_slot.get(self._base_of(slot), 1.0) for slot in operands]
            return min(found, default=1.0)
        if size.kind == GRADIENT:
            same = self._of_layer.get(layer, {}).get(size.inputs * size.outputs * size.times)
            return sum(same) / len(same) if same else 1.0
        return 1.0


def _add(
    sums: _Sums, item: Instruction, entry: Run, program: Program, densities: _Densities
) -> None:
    slots, table = entry.slots, program.slots
    at = Places(
        [table[slots[i]].type for i in item.inputs],
        [table[slots[i]].type for i in item.outputs],
        [program.shows_variable(slots[i]) for i in item.inputs],
        item.attrs,
    )
    backward = entry.direction == "backward"
    found = products_of(item.op, at, backward)
    if found is None:
        moved = item.cost.bytes_read + item.cost.bytes_written
        sums.vector[backward] += moved // _FLOAT_BYTES
    else:
        operands, layer = [slots[i] for i in item.inputs], max(entry.layer, 0)
        for sizes, products in zip(found, (sums.forward, sums.backward)):
            products += [Product(*s, densities.of(s, layer, operands)) for s in sizes]


def _add_kept(sums: dict[int, _Sums], program: Program) -> None:
    """Adds the activations that a later layer or the backward pass reads."""
    made: dict[int, int] = {}
    later: set[int] = set()
    kept: set[int] = set()
    for entry in program.schedule:
        if not isinstance(entry, Run) or entry.direction == "update":
            continue
        for item in program.bodies[entry.body]:
            for slot in {program.base_of(entry.slots[i]) for i in item.inputs} & made.keys():
                if entry.direction == "backward":
                    kept.add(slot)
                elif entry.layer > made[slot]:
                    later.add(slot)
            if entry.direction != "backward":
                for i in item.outputs:
                    slot = program.base_of(entry.slots[i])
                    if program.slots[slot].kind == ARENA:
                        made.setdefault(slot, max(entry.layer, 0))
    for slot, layer in made.items():
        size = math.prod(sizes_at_bounds(program.slots[slot].type))
        if slot in later:
            sums[layer].boundary += size
        elif slot in kept:
            sums[layer].inner += size


def _period(program: Program) -> int:
    """The smallest period at which most forward bodies repeat."""
    bodies: dict[int, int] = {}
    for entry in program.schedule:
        if isinstance(entry, Run) and entry.direction == "forward":
            bodies.setdefault(entry.layer, entry.body)
    found = [bodies[layer] for layer in sorted(bodies)]
    if len(Counter(found)) == len(found):
        return 1
    for period in range(1, min(_MAX_PERIOD, len(found) - 1) + 1):
        same = sum(a == b for a, b in zip(found, found[period:]))
        if 2 * same >= len(found) - period:
            return period
    return 1
