"""What a step demands of a system, by layer: products, bytes and kept activations."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

WEIGHTS = "weights"  # tokens by weights: the sum over inputs travels along the rows
GRADIENT = "gradient"  # of weights: the sum over tokens travels
ACTIVATIONS = "activations"  # of two activations, as in attention: no weights arrive


@dataclass(frozen=True)
class Product:
    """Matrix products of one shape: [tokens, inputs] by [inputs, outputs].

    Attributes:
        kind: WEIGHTS, GRADIENT or ACTIVATIONS.
        tokens: rows of the activations; for a gradient, the summed dimension.
        times: independent products of this shape, such as one per head.
        density: share of the weights that are not zero; zeros cost no cycle.
    """

    kind: str
    tokens: int
    inputs: int
    outputs: int
    times: int = 1
    density: float = 1.0

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds, without zeros."""
        return self.density * self.times * self.tokens * self.inputs * self.outputs

    @property
    def flops(self) -> int:
        """Floating point operations, without zeros; multiply and add count as two."""
        dense = 2 * self.times * self.tokens * self.inputs * self.outputs
        return dense if self.density == 1 else round(self.density * dense)


@dataclass(frozen=True)
class LayerWork:
    """One layer of a step.

    Attributes:
        parameters: weights that stream past.
        forward, backward: products of the passes.
        vector_elements: elements that everything else reads or writes, (forward, backward).
        boundary_elements: activations that the next layer reads.
        inner_elements: other activations that the backward pass reads.
    """

    name: str
    parameters: int
    forward: tuple[Product, ...]
    backward: tuple[Product, ...] = ()
    vector_elements: tuple[int, int] = (0, 0)
    boundary_elements: int = 0
    inner_elements: int = 0

    @property
    def flops(self) -> int:
        """Floating point operations of its products."""
        return sum(product.flops for product in (*self.forward, *self.backward))


@dataclass(frozen=True)
class Workload:
    """One step of one model on one system.

    Attributes:
        layers: in forward order.
        batch: samples per step and system.
        input_bytes: bytes of features per step.
        tokens: tokens per step; 0 if samples have none.
        period: number of layers that repeat, such as 2 for attention and feed-forward.
        mean_length: mean share of a sequence that is not padding, if padding is removed.
    """

    name: str
    layers: tuple[LayerWork, ...]
    batch: int
    state_elements: int = 0
    input_bytes: int = 0
    tokens: int = 0
    period: int = 1
    mean_length: float = 1.0

    @property
    def parameters(self) -> int:
        """Weights of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> int:
        """Floating point operations of a step's products, without recomputation."""
        return sum(layer.flops for layer in self.layers)

    @property
    def density(self) -> float:
        """Share of the operations with weights that remains after pruning."""
        products = [p for layer in self.layers for p in (*layer.forward, *layer.backward)]
        weighty = [p for p in products if p.kind != ACTIVATIONS]
        dense = sum(replace(p, density=1.0).flops for p in weighty)
        return sum(p.flops for p in weighty) / dense if dense else 1.0

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return any(layer.backward for layer in self.layers)

    def segments(self) -> Iterator[tuple[LayerWork, ...]]:
        """Groups of layers that repeat together; the first and last layers are groups of one."""
        repeated = max(len(self.layers) - 2, 0) // self.period * self.period
        head = self.layers[:1]
        if head:
            yield head
        for start in range(1, 1 + repeated, self.period):
            yield self.layers[start : start + self.period]
        for layer in self.layers[1 + repeated :]:
            yield (layer,)

    def pruned(self, density: float, dense: Collection[str] = ()) -> Workload:
        """The same model with weights pruned to `density`, except in layers named in `dense`."""

        def product(item: Product) -> Product:
            return item if item.kind == ACTIVATIONS else replace(item, density=density)

        layers = tuple(
            layer
            if layer.name in dense
            else replace(
                layer,
                forward=tuple(map(product, layer.forward)),
                backward=tuple(map(product, layer.backward)),
            )
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def with_batch(self, batch: int) -> Workload:
        """The same model with another batch size."""

        def scaled(number: int) -> int:
            return number * batch // self.batch

        def product(item: Product) -> Product:
            return replace(item, tokens=scaled(item.tokens))

        layers = tuple(
            replace(
                layer,
                forward=tuple(map(product, layer.forward)),
                backward=tuple(map(product, layer.backward)),
                vector_elements=(
                    scaled(layer.vector_elements[0]),
                    scaled(layer.vector_elements[1]),
                ),
                boundary_elements=scaled(layer.boundary_elements),
                inner_elements=scaled(layer.inner_elements),
            )
            for layer in self.layers
        )
        return replace(
            self,
            layers=layers,
            batch=batch,
            input_bytes=scaled(self.input_bytes),
            tokens=scaled(self.tokens),
        )
