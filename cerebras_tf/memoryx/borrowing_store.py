"""A store that reads the variables of another: an evaluation within a training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.store import BaseStore, FileRegion, IoStats, Store


class BorrowingStore(BaseStore):
    """Reads variables from another store if it can, else from a store of its own.

    Args:
        own: its own store, with all variables.
        owner: the other store, whose variables must not change in the meantime.
    """

    def __init__(self, own: Store, owner: Store) -> None:
        super().__init__(own.specs.values())
        self._own = own
        self._owner = owner
        self._lent: set[str] = set()
        self._followed: Sequence[Sequence[str]] = ()
        self._orders: dict[Store, list[list[str]]] = {}

    def borrow(self) -> set[str]:
        """See Store.borrow; takes every variable that the owner has, as it is there."""
        theirs = self._owner.specs
        self._lent = {
            name
            for name, spec in self.specs.items()
            if name in theirs and theirs[name].type == spec.type and self._owner.has_value(name)
        }
        self._followed = ()
        return set(self._lent)

    def _by_store(self, names: Iterable[str]) -> dict[Store, list[str]]:
        """The names that each store has, of those that have any."""
        parts: dict[Store, list[str]] = {}
        for name in names:
            parts.setdefault(self._owner if name in self._lent else self._own, []).append(name)
        return parts

    def reserve(self, specs: Iterable[Variable]) -> None:
        self._own.reserve(specs)

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; what is acquired fresh is lent no more."""
        if fresh:
            self._lent.difference_update(names)
        arrays: dict[str, Array] = {}
        held: list[tuple[Store, list[str]]] = []
        try:
            for store, part in self._by_store(names).items():
                arrays.update(zip(part, store.acquire(part, fresh)))
                held.append((store, part))
        except BaseException:
            for store, part in held:
                store.release(part)
            raise
        return [arrays[name] for name in names]

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        """See Store.release.

        Raises:
            RuntimeError: a lent variable was written.
        """
        written = sorted(self._lent.intersection(dirty))
        if written:
            raise RuntimeError(
                f"store: {written[0]} must only be read while another store lends it. Received: a "
                "release as written. Acquire it fresh to write it."
            )
        for store, part in self._by_store(names).items():
            store.release(part, [name for name in part if name in dirty])

    def set_access_order(self, order: Sequence[Sequence[str]]) -> None:
        if order is not self._followed:
            self._followed = order
            self._orders = {}
            for names in order:
                for store, part in self._by_store(names).items():
                    self._orders.setdefault(store, []).append(part)
        for store, groups in self._orders.items():
            store.set_access_order(groups)

    def require_memory(self, groups: Iterable[Sequence[str]]) -> None:
        """See Store.require_memory; of lent variables it is their owner's."""
        for names in groups:
            for store, part in self._by_store(names).items():
                store.require_memory([part])

    def has_value(self, name: str) -> bool:
        return name in self._lent or self._own.has_value(name)

    def not_finite(self, names: Iterable[str]) -> list[str]:
        parts = self._by_store(names)
        return [name for store, part in parts.items() for name in store.not_finite(part)]

    @property
    def version(self) -> int:
        return self._own.version

    def link_source(self, name: str, region: FileRegion) -> bool:
        """See Store.link_source; what is adopted is lent no more."""
        self._lent.discard(name)
        return self._own.link_source(name, region)

    @property
    def io_stats(self) -> IoStats:
        """What was moved for variables that are not lent."""
        return self._own.io_stats

    def close(self) -> None:
        """Closes its own store; the owner stays open."""
        self._own.close()

    @property
    def resident_bytes(self) -> int:
        """Bytes of main memory besides the owner's."""
        return self._own.resident_bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of main memory besides the owner's once every variable has a value."""
        kept = sum(
            spec.type.max_bytes for name, spec in self.specs.items() if name not in self._lent
        )
        return min(kept, self._own.total_resident_bytes)
