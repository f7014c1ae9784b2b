"""A store without contents: what a null machine streams, with the bytes that a real one holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from cerebras_tf.ir import Array, Variable


class NullStore:
    """Variables that all read zero and take what is written for nothing.

    Args:
        specs: the variables.
    """

    def __init__(self, specs: Iterable[Variable]) -> None:
        self._specs = {spec.name: spec for spec in specs}

    @property
    def specs(self) -> Mapping[str, Variable]:
        """What each variable is, by name."""
        return self._specs

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; the arrays are read-only and take no memory."""
        types = [self._specs[name].type for name in names]
        return [
            np.broadcast_to(np.zeros((), type.storage_dtype), type.static_shape) for type in types
        ]

    def release(self, names: Iterable[str], dirty: Collection[str] = ()) -> None:
        """See Store.release."""

    def follow(self, order: Sequence[Sequence[str]]) -> None:
        """See Store.follow."""

    def holds(self, name: str) -> bool:
        """Whether the variable has a value: all do."""
        return True

    @property
    def version(self) -> int:
        """Always the same: nothing is kept of what is written."""
        return 0

    @property
    def resident_bytes(self) -> int:
        """Bytes that the variables would take."""
        return self.total_resident_bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes that the variables would take."""
        return sum(spec.type.most_bytes for spec in self._specs.values())
