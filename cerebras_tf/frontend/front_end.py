"""What a front end must provide, and the types of a step's features."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Protocol

from cerebras_tf.errors import DataError
from cerebras_tf.ir import Dim, StepGraph, TensorType
from cerebras_tf.ir.dimensions import UNLIMITED

# Values of at most this many bytes are returned by every step; larger ones only on request.
_SMALL_BYTES = 1 << 16


@dataclass(frozen=True)
class Feature:
    """An input of the step as the model declares it.

    Attributes:
        name: its name in the step graph.
        dtype: element type.
        shape: None for a size that differs from batch to batch; None as a whole if even the number
            of dimensions is unknown.
        symbols: names of the open sizes, by axis; sizes of one name are equal in every batch, and
            others are assumed to be if they are equal in the first batch, on the same axis. None:
            all that are equal in the first batch are assumed to be.
    """

    name: str
    dtype: str
    shape: Optional[tuple[Optional[int], ...]]
    symbols: Optional[tuple[Optional[str], ...]] = None

    @property
    def static_type(self) -> Optional[TensorType]:
        """The type; None if a size is open."""
        if self.shape is None or None in self.shape:
            return None
        return TensorType(self.dtype, self.shape)

    @property
    def smallest_type(self) -> TensorType:
        """A type with size 1 in place of every open size."""
        return TensorType(self.dtype, tuple(size or 1 for size in self.shape or ()))

    def check(self, type: TensorType) -> None:
        """Raises DataError if a batch's type does not match the declared shape."""
        shape = self.shape
        if shape is not None and (
            len(shape) != len(type.shape)
            or any(
                known is not None and isinstance(size, int) and known != size
                for known, size in zip(shape, type.shape)
            )
        ):
            declared = f"({', '.join('None' if s is None else str(s) for s in shape)})"
            raise DataError(
                f"feature {self.name}: shape must match {declared}. Received: {list(type.shape)}. "
                "Correct the input function."
            )


class FrontEnd(Protocol):
    """A model as a front end gives it to a CompilingSource.

    Attributes:
        features: inputs of the step, in a fixed order.
        global_step: name of the variable that counts steps. It is kept by the session.
        trains: whether a step may update variables.
        loss: name of the result that is averaged over several wafers; None for none.
        has_fallback: whether `capture` can capture the framework's own backward graph.
    """

    @property
    def features(self) -> Sequence[Feature]:
        """See the class."""

    @property
    def global_step(self) -> str:
        """See the class."""

    @property
    def trains(self) -> bool:
        """See the class."""

    @property
    def loss(self) -> Optional[str]:
        """See the class."""

    @property
    def has_fallback(self) -> bool:
        """See the class."""

    @property
    def results(self) -> Mapping[str, TensorType]:
        """Values that a step can return, by name, with the types known without a batch."""

    def capture(
        self,
        types: Mapping[str, TensorType],
        results: Collection[str],
        updates: bool,
        fallback: bool = False,
    ) -> StepGraph:
        """Captures one step.

        Args:
            types: type of every feature, by name; sizes are numbers or symbols.
            updates: whether the step updates variables.
            fallback: capture the framework's own backward graph in place of recorded gradients.

        Raises:
            UnsupportedOpError: operations have no IR form.
        """

    def digest(self, results: Iterable[str], updates: bool) -> Optional[str]:
        """Hash of everything in the model that such a step depends on.

        Returns:
            The hash, by which compiled programs are found again; None if a result is unknown or
            the model cannot be hashed.
        """

    def seed(self) -> int:
        """Seed of random operations without a seed of their own."""


def types_with_symbols(
    features: Iterable[Feature], batches: Sequence[Mapping[str, TensorType]], numbers: Iterator[int]
) -> Optional[dict[str, TensorType]]:
    """Types with a symbol for every size that the model leaves open; None if there are none.

    Sizes that are equal in all these batches share a symbol, see Feature.symbols; or are a number,
    if they are the known number of rows of another feature. A batch in which they differ gets a
    program of its own.

    Args:
        batches: types of the features; the last are those of the batch that has no program.
        numbers: numbers for the names of new symbols.
    """
    features = list(features)
    rows = {f.shape[0] for f in features if f.shape and f.shape[0] is not None}
    symbols: dict[tuple[Any, Optional[int]], Any] = {}
    named: dict[str, tuple[Any, Optional[int]]] = {}
    found = dict(batches[-1])
    for feature in features:
        type = found[feature.name]
        shape = (None,) * type.rank if feature.shape is None else feature.shape
        given = [batch[feature.name] for batch in batches if feature.name in batch]
        alike = [other for other in given if other.rank == type.rank]
        dims: list[Any] = list(type.shape)
        for axis, (known, size) in enumerate(zip(shape, type.shape)):
            if known is None and isinstance(size, int) and size:
                sizes = tuple(other.shape[axis] for other in alike)
                if axis == 0 and not feature.symbols and size in rows and set(sizes) == {size}:
                    continue
                name = feature.symbols[axis] if feature.symbols else None
                key = (sizes, None) if name is None else named.setdefault(name, (sizes, axis))
                if key not in symbols:
                    symbols[key] = Dim.symbol(f"d{next(numbers)}", size, UNLIMITED)
                dims[axis] = symbols[key]
        found[feature.name] = type.with_shape(tuple(dims))
    return found if symbols else None


def limited_type(type: TensorType, limits: Mapping[str, int]) -> TensorType:
    """The type with no symbol above its limit."""
    dims = []
    for dim in type.shape:
        for symbol in dim.symbols if isinstance(dim, Dim) else ():
            limit = min(symbol.limit, limits.get(symbol.name, symbol.limit))
            dim = Dim.symbol(symbol.name, symbol.bound, limit)
        dims.append(dim)
    return type.with_shape(tuple(dims))


def is_small(type: TensorType) -> bool:
    """Whether every step returns such a value, and not on request only."""
    return type.is_static and type.bytes <= _SMALL_BYTES
