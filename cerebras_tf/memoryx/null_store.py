"""A store without contents: what a null machine streams, with the bytes that a real one holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from cerebras_tf.ir import Array
from cerebras_tf.memoryx.store import UnlinkedStore


class NullStore(UnlinkedStore):
    """Variables that all read zero and take what is written for nothing.

    Args:
        specs: the variables.
    """

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; the arrays are read-only and take no memory."""
        types = map(self._type, names)
        return [
            np.broadcast_to(np.zeros((), type.storage_dtype), type.static_shape) for type in types
        ]

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        """See Store.release."""

    def holds(self, name: str) -> bool:
        """Whether the variable has a value: all do."""
        return True

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """None of them: all are zero."""
        return []

    @property
    def version(self) -> int:
        """Always the same: nothing is kept of what is written."""
        return 0

    @property
    def resident_bytes(self) -> int:
        """Bytes that the variables would take."""
        return self.total_resident_bytes
