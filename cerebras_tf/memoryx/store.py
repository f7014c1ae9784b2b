"""Where weights and optimizer state rest between steps: the contract of a store, and one in RAM.

A store is a set of variables that are acquired by name, used, and released. Runtime, saver, initial
values, warm start, guards and capacity checks use nothing else, so that where the bytes rest (in
memory, in files, on other machines) is the store's affair alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional, Protocol

import numpy as np

from cerebras_tf.bundle.index import Entry
from cerebras_tf.errors import CapacityError, CheckpointError
from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.kernels.compiled_reduction import all_finite
from cerebras_tf.kernels.half_precision import to_storage


@dataclass
class Traffic:
    """What a store has moved between memory and files so far.

    Attributes:
        bytes_read: bytes read from files, or asked for.
        bytes_written: bytes written to files, or handed to be.
        stalled_s: seconds for which those who acquire have waited for files.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    stalled_s: float = 0.0


class Store(Protocol):
    """The one door to variables."""

    @property
    def specs(self) -> Mapping[str, Variable]:
        """What each variable is, by name."""

    def reserve(self, specs: Iterable[Variable]) -> None:
        """Makes room for values that live within a step.

        They are acquired and released like variables, but are in no checkpoint and not among
        `specs`. Each is written once in a step and then read once, which ends it. Those that are
        known already stay.
        """

    @property
    def stays(self) -> bool:
        """Whether values stay in main memory where they are: holding them longer takes no more."""

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """Arrays of variables, readable and writable until they are released.

        Args:
            names: of variables; each may be acquired by several at once, who see the same memory.
            fresh: the contents are not read: the caller overwrites all of them.

        Returns:
            Arrays of the variables' shapes and storage dtypes, in the order of the names.

        Raises:
            CheckpointError: a variable has no value yet, and `fresh` is not set.
            CapacityError: there is no room for them.
        """

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        """Ends one acquisition of each name; their arrays must not be used any more.

        Args:
            names: acquired before.
            dirty: those among them whose arrays were written.
        """

    def follow(self, order: Sequence[Sequence[str]]) -> None:
        """Says in which groups, and in which order, a step acquires variables, to read ahead."""

    def require_room(self, groups: Iterable[Sequence[str]]) -> None:
        """Raises CapacityError where the variables of one of the groups cannot be held at once."""

    def holds(self, name: str) -> bool:
        """Whether the variable has a value."""

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """Those of some variables whose value holds NaN or infinity, which nobody holds now.

        What was adopted and not acquired since is not looked at: it is as it was saved.
        """

    @property
    def version(self) -> int:
        """A number that grows whenever a variable is written."""

    def adopt(self, name: str, entry: Entry) -> bool:
        """Takes a variable's value from where it lies in a file of a checkpoint.

        Args:
            name: of a variable that nobody holds.
            entry: the place, and a checksum that is compared when it is read for the first time.

        Returns:
            Whether it did; else the value is to be written.
        """

    def settle(self) -> Optional[Mapping[str, Entry]]:
        """Where the values lie in files whose contents stay as they are now, for a checkpoint.

        Returns:
            The place of every variable that has a value; None where values do not lie in files.

        Raises:
            StoreError: they could not be written.
        """

    @property
    def traffic(self) -> Traffic:
        """What the store has moved between memory and files."""

    def close(self) -> None:
        """Gives everything back; nothing may be acquired any more."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of main memory that the store takes now."""

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of main memory that it takes once every variable has a value."""


class UnlinkedStore:
    """What stores answer alike whose values do not lie in files of a checkpoint's format.

    Args:
        specs: the variables.
    """

    stays = False

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

    def _type(self, name: str) -> TensorType:
        """Type of a variable, or of a value that lives within a step."""
        return (self._specs.get(name) or self._within_step[name]).type

    def follow(self, order: Sequence[Sequence[str]]) -> None:
        """Nothing to read ahead."""

    def require_room(self, groups: Iterable[Sequence[str]]) -> None:
        """Nothing: total_resident_bytes says what all of them take."""

    def adopt(self, name: str, entry: Entry) -> bool:
        """Never: no value lies in a file of a checkpoint."""
        return False

    def settle(self) -> Optional[Mapping[str, Entry]]:
        """None: no value lies in a file of a checkpoint."""
        return None

    @property
    def traffic(self) -> Traffic:
        """Nothing is moved."""
        return Traffic()

    def close(self) -> None:
        """See Store.close."""

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of all variables, set or not."""
        every = [*self._specs.values(), *self._within_step.values()]
        return sum(spec.type.most_bytes for spec in every)


class MemoryStore(UnlinkedStore):
    """A store in main memory: arrays stay where they are; acquiring hands out the memory itself.

    Args:
        specs: the variables.
    """

    stays = True

    def __init__(self, specs: Iterable[Variable]) -> None:
        super().__init__(specs)
        self._arrays: dict[str, Array] = {}
        self._set: set[str] = set()
        self._acquired: set[str] = set()
        self._again: Counter[str] = Counter()  # how often more than once
        self._version = self._resident_bytes = 0

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire."""
        if not (fresh or self._set.issuperset(names)):
            require_values(self, names)
        held = self._arrays
        try:
            arrays = [held[name] for name in names]
        except KeyError:
            arrays = [held[name] if name in held else self._made(name) for name in names]
        acquired = self._acquired
        if not acquired.isdisjoint(names):
            self._again.update(name for name in names if name in acquired)
        acquired.update(names)
        return arrays

    def _made(self, name: str) -> Array:
        """The array of a variable that has none yet."""
        type = self._type(name)
        try:
            made = np.empty(type.static_shape, type.storage_dtype)
        except MemoryError as error:
            raise CapacityError(
                f"variable {name}: must fit in memory. Received: {type.bytes} bytes, beside "
                f"{self.resident_bytes} of other variables. Use a smaller model or a machine "
                "with more memory."
            ) from error
        self._arrays[name] = made
        self._resident_bytes += made.nbytes
        return made

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        """See Store.release."""
        acquired, again = self._acquired, self._again
        if again or not acquired.issuperset(names):
            for name in names:
                if name not in acquired:
                    raise RuntimeError(f"store: {name} is released, but it was not acquired.")
                again[name] -= 1
                if again[name] < 0:
                    acquired.remove(name)
                if again[name] <= 0:
                    del again[name]
        else:
            acquired.difference_update(names)
        if dirty:
            self._set.update(dirty)
            self._version += any(name in self._specs for name in dirty)

    def holds(self, name: str) -> bool:
        """Whether the variable has a value."""
        return name in self._set

    @property
    def version(self) -> int:
        """See Store.version."""
        return self._version

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """See Store.not_finite."""
        held = [name for name in names if name in self._set]
        return [n for n in held if not all_finite(self._arrays[n], self._type(n).dtype)]

    def close(self) -> None:
        """See Store.close."""
        self._arrays.clear()
        self._set.clear()
        self._resident_bytes = 0

    @property
    def resident_bytes(self) -> int:
        """Bytes of the variables that are allocated."""
        return self._resident_bytes


def require_values(store: Store, names: Sequence[str]) -> None:
    """Raises CheckpointError where a variable has no value yet."""
    missing = [name for name in names if not store.holds(name)]
    if missing:
        raise CheckpointError(
            f"variable {missing[0]}: must have a value before the first step. Received: none. "
            "Initialise the model or restore a checkpoint that holds it."
        )


@contextmanager
def reading(store: Store, name: str) -> Iterator[Array]:
    """The array of one variable for the time of the context; it must not be written."""
    (array,) = store.acquire([name])
    try:
        yield array
    finally:
        store.release([name])


@contextmanager
def writing(store: Store, name: str, fresh: bool = False) -> Iterator[Array]:
    """The array of one variable for the time of the context, which writes it.

    Where that fails, the variable is released as if nothing had been written.

    Args:
        store: holds it.
        name: of the variable.
        fresh: all of it is overwritten; see Store.acquire.
    """
    (array,) = store.acquire([name], fresh)
    dirty: list[str] = []
    try:
        yield array
        dirty = [name]
    finally:
        store.release([name], dirty)


def write(store: Store, name: str, content: Array) -> None:
    """Sets one variable.

    Args:
        store: holds it.
        name: of the variable.
        content: its value, of the variable's shape; converted to its dtype.

    Raises:
        CheckpointError: the shape is another.
        CapacityError: there is no room for it.
    """
    type = store.specs[name].type
    if tuple(content.shape) != type.shape:
        raise CheckpointError(
            f"variable {name}: shape must be {list(type.shape)}. "
            f"Received: {list(content.shape)}. Use a checkpoint of the same model."
        )
    with writing(store, name, fresh=True) as array:
        array[...] = to_storage(content, type.dtype)
