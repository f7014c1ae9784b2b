"""A store without contents: what a null machine streams, with the bytes that a real one holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Optional

import numpy as np

from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.bundle import Entry
from cerebras_tf.memoryx.store import Traffic


class NullStore:
    """Variables that all read zero and take what is written for nothing.

    Args:
        specs: the variables.
    """

    def __init__(self, specs: Iterable[Variable]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._within_step: dict[str, Variable] = {}

    @property
    def specs(self) -> Mapping[str, Variable]:
        """What each variable is, by name."""
        return self._specs

    def reserve(self, specs: Iterable[Variable]) -> None:
        """See Store.reserve."""
        self._within_step.update((spec.name, spec) for spec in specs)

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; the arrays are read-only and take no memory."""
        types = [(self._specs.get(name) or self._within_step[name]).type for name in names]
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

    def adopt(self, name: str, entry: Entry) -> bool:
        """Never: there are no contents."""
        return False

    def settle(self) -> Optional[Mapping[str, Entry]]:
        """None: there are no contents."""
        return None

    @property
    def traffic(self) -> Traffic:
        """Nothing is moved."""
        return Traffic()

    def close(self) -> None:
        """See Store.close."""

    @property
    def resident_bytes(self) -> int:
        """Bytes that the variables would take."""
        return self.total_resident_bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes that the variables would take."""
        every = [*self._specs.values(), *self._within_step.values()]
        return sum(spec.type.most_bytes for spec in every)
