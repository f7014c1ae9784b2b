"""A store that reads another's variables while their owner rests: an evaluation within training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from cerebras_tf.ir import Array, Variable
from cerebras_tf.memoryx.store import MemoryStore, Store


class BorrowingStore:
    """Variables that another store may lend, and memory for those that it does not.

    Args:
        specs: the variables.
        owner: the other store. What it lends must not change while it is lent.
    """

    def __init__(self, specs: Iterable[Variable], owner: Store) -> None:
        self._own = MemoryStore(specs)
        self._owner = owner
        self._lent: set[str] = set()

    def borrow(self) -> None:
        """Takes every variable that the owner has, as it is there."""
        theirs = self._owner.specs
        self._lent = {
            name
            for name, spec in self.specs.items()
            if name in theirs and theirs[name].type == spec.type and self._owner.holds(name)
        }

    def is_lent(self, name: str) -> bool:
        """Whether the variable is the owner's."""
        return name in self._lent

    @property
    def specs(self) -> Mapping[str, Variable]:
        """What each variable is, by name."""
        return self._own.specs

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; what is acquired fresh is lent no more."""
        if fresh:
            self._lent.difference_update(names)
        arrays = []
        for name in names:
            arrays += (self._owner if name in self._lent else self._own).acquire([name], fresh)
        return arrays

    def release(self, names: Iterable[str], dirty: Collection[str] = ()) -> None:
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
        for name in names:
            if name in self._lent:
                self._owner.release([name])
            else:
                self._own.release([name], [name] if name in dirty else ())

    def follow(self, order: Sequence[Sequence[str]]) -> None:
        """See Store.follow."""
        self._owner.follow([[name for name in group if name in self._lent] for group in order])

    def holds(self, name: str) -> bool:
        """Whether the variable has a value."""
        return name in self._lent or self._own.holds(name)

    @property
    def version(self) -> int:
        """See Store.version."""
        return self._own.version

    @property
    def resident_bytes(self) -> int:
        """Bytes of main memory beside the owner's."""
        return self._own.resident_bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of main memory beside the owner's once every variable has a value."""
        return sum(
            spec.type.most_bytes for name, spec in self.specs.items() if name not in self._lent
        )
