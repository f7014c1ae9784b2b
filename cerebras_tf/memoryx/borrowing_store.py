"""A store that reads another's variables while their owner rests: an evaluation within training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Optional

from cerebras_tf.bundle.index import Entry
from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.store import Store, Traffic


class BorrowingStore:
    """Variables that another store may lend, and a store of its own for those that it does not.

    Args:
        own: the store of its own, which has all of the variables.
        owner: the other store. What it lends must not change while it is lent.
    """

    stays = False

    def __init__(self, own: Store, owner: Store) -> None:
        self._own = own
        self._owner = owner
        self._lent: set[str] = set()
        self._followed: Sequence[Sequence[str]] = ()
        self._orders: dict[Store, list[list[str]]] = {}

    def borrow(self) -> None:
        """Takes every variable that the owner has, as it is there."""
        theirs = self._owner.specs
        self._lent = {
            name
            for name, spec in self.specs.items()
            if name in theirs and theirs[name].type == spec.type and self._owner.holds(name)
        }
        self._followed = ()

    def is_lent(self, name: str) -> bool:
        """Whether the variable is the owner's."""
        return name in self._lent

    def _parts(self, names: Iterable[str]) -> dict[Store, list[str]]:
        """The names that each store has, of those that have any."""
        parts: dict[Store, list[str]] = {}
        for name in names:
            parts.setdefault(self._owner if name in self._lent else self._own, []).append(name)
        return parts

    @property
    def specs(self) -> Mapping[str, Variable]:
        """What each variable is, by name."""
        return self._own.specs

    def reserve(self, specs: Iterable[Variable]) -> None:
        """See Store.reserve."""
        self._own.reserve(specs)

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; what is acquired fresh is lent no more."""
        if fresh:
            self._lent.difference_update(names)
        arrays: dict[str, Array] = {}
        held: list[tuple[Store, list[str]]] = []
        try:
            for store, part in self._parts(names).items():
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
        for store, part in self._parts(names).items():
            store.release(part, [name for name in part if name in dirty])

    def follow(self, order: Sequence[Sequence[str]]) -> None:
        """See Store.follow."""
        if order is not self._followed:
            self._followed = order
            self._orders = {}
            for names in order:
                for store, part in self._parts(names).items():
                    self._orders.setdefault(store, []).append(part)
        for store, groups in self._orders.items():
            store.follow(groups)

    def require_room(self, groups: Iterable[Sequence[str]]) -> None:
        """See Store.require_room; of lent variables it is their owner's."""
        for names in groups:
            for store, part in self._parts(names).items():
                store.require_room([part])

    def holds(self, name: str) -> bool:
        """Whether the variable has a value."""
        return name in self._lent or self._own.holds(name)

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """See Store.not_finite."""
        parts = self._parts(names)
        return [name for store, part in parts.items() for name in store.not_finite(part)]

    @property
    def version(self) -> int:
        """See Store.version."""
        return self._own.version

    def adopt(self, name: str, entry: Entry) -> bool:
        """See Store.adopt; what is adopted is lent no more."""
        self._lent.discard(name)
        return self._own.adopt(name, entry)

    def settle(self) -> Optional[Mapping[str, Entry]]:
        """None: an evaluation writes no checkpoints."""
        return None

    @property
    def traffic(self) -> Traffic:
        """What was moved for variables that are not lent."""
        return self._own.traffic

    def close(self) -> None:
        """Gives back its own store; the owner stays."""
        self._own.close()

    @property
    def resident_bytes(self) -> int:
        """Bytes of main memory beside the owner's."""
        return self._own.resident_bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of main memory beside the owner's once every variable has a value."""
        kept = sum(
            spec.type.most_bytes for name, spec in self.specs.items() if name not in self._lent
        )
        return min(kept, self._own.total_resident_bytes)
