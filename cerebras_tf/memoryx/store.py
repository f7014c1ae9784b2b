"""Where variables and optimizer state are kept between steps: the protocol, and stores in memory.

A store is a set of variables that are acquired by name, used, and released. Executor, saver,
initial values, warm start and capacity checks use nothing else: whether values are in memory, in
files or on other wafers is asked, never inferred from a store's class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional, Protocol

import numpy as np

from cerebras_tf.errors import CapacityError, CheckpointError
from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.kernels.compiled_reduction import all_finite
from cerebras_tf.kernels.half_precision import to_storage


@dataclass(frozen=True)
class FileRegion:
    """Bytes of a file that hold a variable.

    Attributes:
        dtype: of the variable; "" for content that the IR has no name for, such as strings.
        shape: of the variable.
        path: of the file.
        offset: of the first byte.
        size: in bytes.
        checksum: CRC-32C of the bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    path: str
    offset: int
    size: int
    checksum: int

    @property
    def is_whole(self) -> bool:
        """Whether the bytes are the variable's value in its dtype and shape."""
        return bool(self.dtype)

    def advice_on_damage(self) -> str:
        """What to do where the bytes are not those that were written: a sentence."""
        return "Restore the file."


@dataclass
class IoStats:
    """What a store has moved between memory and files so far.

    Attributes:
        bytes_read: bytes read from files, or requested.
        bytes_written: bytes written to files, or queued.
        stalled_s: seconds that callers of `acquire` have waited for files.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    stalled_s: float = 0.0


class Store(Protocol):
    """The one way to variables. `BaseStore` has the answers of a plain store in this process."""

    @property
    def specs(self) -> Mapping[str, Variable]:
        """What each variable is, by name."""

    def reserve(self, specs: Iterable[Variable]) -> None:
        """Adds values that live within a step, besides those that are known already.

        They are acquired and released like variables, but are in no checkpoint and not among
        `specs`. Each is written once in a step and then read once, which ends it.
        """

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """Arrays of variables, readable and writable until they are released.

        Args:
            names: of variables; each may be acquired several times at once, as the same memory.
            fresh: the contents are not read: the caller overwrites all of them.

        Returns:
            Arrays of the variables' shapes and storage dtypes, in the order of the names.

        Raises:
            CheckpointError: a variable has no value yet, and `fresh` is not set.
            CapacityError: they do not fit into memory.
        """

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        """Ends one acquisition of each name; their arrays must not be used any more.

        Args:
            names: acquired before.
            dirty: those among them whose arrays were written.
        """

    def set_access_order(self, order: Sequence[Sequence[str]]) -> None:
        """Gives the groups of variables that a step acquires, in order, for reading ahead."""

    def require_memory(self, groups: Iterable[Sequence[str]]) -> None:
        """Raises CapacityError where the variables of one of the groups cannot be held at once."""

    def has_value(self, name: str) -> bool:
        """Whether the variable has a value."""

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """Those of some variables that hold NaN or infinity; none of them is acquired now.

        A variable that was linked and not acquired since is not checked: it is as it was saved.
        """

    @property
    def version(self) -> int:
        """A number that grows whenever a variable is written."""

    def link_source(self, name: str, region: FileRegion) -> bool:
        """Takes a variable's value from a file, without reading it now.

        Args:
            name: of a variable that is not acquired.
            region: the bytes; the checksum is compared when they are first read.

        Returns:
            Whether it did; else the value must be written.
        """

    def linkable_regions(self) -> Optional[Mapping[str, FileRegion]]:
        """Where the values are, in files that are never changed from now on.

        Returns:
            The region of every variable that has a value; None where values are not in files.

        Raises:
            StoreError: they could not be written.
        """

    @property
    def io_stats(self) -> IoStats:
        """What the store has moved between memory and files."""

    def close(self) -> None:
        """Frees everything; nothing may be acquired any more."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of main memory that the store takes now."""

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of main memory that it takes once every variable has a value."""

    # What kind of store it is.

    @property
    def gives_views(self) -> bool:
        """Whether `acquire` gives the memory in which values are kept.

        Then holding variables for a whole step takes no more memory.
        """

    @property
    def folder(self) -> Optional[str]:
        """The folder of the files that hold this wafer's values; None where there are none."""

    @property
    def memory_limit(self) -> Optional[int]:
        """Bytes of main memory that values in files may take; None without a limit."""

    @property
    def is_shared(self) -> bool:
        """Whether variables are sharded over several wafers, or may be."""

    @property
    def rank(self) -> int:
        """The rank of this wafer; 0 where the store is not shared."""

    @property
    def local(self) -> Store:
        """The store of this wafer alone: the store itself where it is not shared."""

    @property
    def planned_resident_bytes(self) -> int:
        """`total_resident_bytes` as all wafers compute it alike, sharded or not."""

    def shard(self, owners: Mapping[str, int]) -> None:
        """Sets which wafer keeps each variable from now on; before, all keep all.

        Args:
            owners: rank by name; variables that all wafers keep are not listed.

        Raises:
            SwarmError: some have other owners already, or wafers do not agree.
        """

    def set_shard(self, elsewhere: Collection[str], stores_on_disk: int) -> None:
        """Sets the part that a wafer's own store keeps, for the free disk space that it must have.

        Args:
            elsewhere: names of variables that other wafers keep.
            stores_on_disk: stores of about this one's size on its disk, this one included.
        """

    def broadcast(self, names: Iterable[str], rank: int) -> None:
        """Gives all wafers one wafer's value of variables that all keep."""

    def borrow(self) -> set[str]:
        """Takes the variables of a store around this one, for reading; returns their names."""


class BaseStore:
    """The answers of a plain store in one process, whose values are not in files."""

    gives_views = False
    is_shared = False

    def __init__(self, specs: Iterable[Variable]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._within_step: dict[str, Variable] = {}

    @property
    def specs(self) -> Mapping[str, Variable]:
        return self._specs

    def reserve(self, specs: Iterable[Variable]) -> None:
        self._within_step.update((spec.name, spec) for spec in specs)

    def _type(self, name: str) -> TensorType:
        """Type of a variable, or of a value that lives within a step."""
        return (self._specs.get(name) or self._within_step[name]).type

    def set_access_order(self, order: Sequence[Sequence[str]]) -> None:
        """See Store.set_access_order; nothing is read ahead."""

    def require_memory(self, groups: Iterable[Sequence[str]]) -> None:
        """See Store.require_memory; total_resident_bytes is all of them."""

    def link_source(self, name: str, region: FileRegion) -> bool:
        return False

    def linkable_regions(self) -> Optional[Mapping[str, FileRegion]]:
        return None

    @property
    def io_stats(self) -> IoStats:
        return IoStats()

    def close(self) -> None:
        pass

    @property
    def total_resident_bytes(self) -> int:
        every = [*self._specs.values(), *self._within_step.values()]
        return sum(spec.type.max_bytes for spec in every)

    @property
    def folder(self) -> Optional[str]:
        return None

    @property
    def memory_limit(self) -> Optional[int]:
        return None

    @property
    def rank(self) -> int:
        return 0

    @property
    def local(self: Store) -> Store:
        return self

    @property
    def planned_resident_bytes(self) -> int:
        return self.total_resident_bytes

    def shard(self, owners: Mapping[str, int]) -> None:
        """See Store.shard; one wafer keeps all."""

    def set_shard(self, elsewhere: Collection[str], stores_on_disk: int) -> None:
        pass

    def broadcast(self, names: Iterable[str], rank: int) -> None:
        """See Store.broadcast; there is one wafer."""

    def borrow(self) -> set[str]:
        return set()


class MemoryStore(BaseStore):
    """A store in main memory; `acquire` gives the arrays themselves."""

    gives_views = True

    def __init__(self, specs: Iterable[Variable]) -> None:
        super().__init__(specs)
        self._arrays: dict[str, Array] = {}
        self._set: set[str] = set()
        self._acquired: set[str] = set()
        self._again: Counter[str] = Counter()  # how often more than once
        self._version = self._resident_bytes = 0

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
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
                f"variable {name}: must fit in memory. Received: {type.bytes} bytes, besides "
                f"{self.resident_bytes} of other variables. Use a smaller model or a computer "
                "with more memory."
            ) from error
        self._arrays[name] = made
        self._resident_bytes += made.nbytes
        return made

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
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

    def has_value(self, name: str) -> bool:
        """Whether the variable has a value."""
        return name in self._set

    @property
    def version(self) -> int:
        return self._version

    def not_finite(self, names: Iterable[str]) -> list[str]:
        held = [name for name in names if name in self._set]
        return [n for n in held if not all_finite(self._arrays[n], self._type(n).dtype)]

    def close(self) -> None:
        self._arrays.clear()
        self._set.clear()
        self._resident_bytes = 0

    @property
    def resident_bytes(self) -> int:
        """Bytes of the variables that are allocated."""
        return self._resident_bytes


class NullStore(BaseStore):
    """Variables that all read zero and ignore writes, for programs that run on a NullBackend."""

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """See Store.acquire; the arrays are read-only and take no memory."""
        types = map(self._type, names)
        return [
            np.broadcast_to(np.zeros((), type.storage_dtype), type.static_shape) for type in types
        ]

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        pass

    def has_value(self, name: str) -> bool:
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


def require_values(store: Store, names: Sequence[str]) -> None:
    """Raises CheckpointError where a variable has no value yet."""
    missing = [name for name in names if not store.has_value(name)]
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

    Raises:
        CheckpointError: the shape is another.
        CapacityError: it does not fit into memory.
    """
    type = store.specs[name].type
    if tuple(content.shape) != type.shape:
        raise CheckpointError(
            f"variable {name}: shape must be {list(type.shape)}. "
            f"Received: {list(content.shape)}. Use a checkpoint of the same model."
        )
    with writing(store, name, fresh=True) as array:
        array[...] = to_storage(content, type.dtype)
