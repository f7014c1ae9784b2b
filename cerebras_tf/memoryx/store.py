"""Stores of variables and optimizer state: the protocol, and the store in main memory.

Variables are acquired by name, used, and released. Callers ask a store where its values are, and do
not depend on its class.
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
from cerebras_tf.user_files import open_regular


@dataclass(frozen=True)
class FileRegion:
    """Bytes of a file that hold a variable.

    Attributes:
        dtype: of the variable; "" if the IR has no such dtype, as for strings.
        shape: of the variable.
        path: of the file.
        offset: of the first byte.
        size: in bytes.
        checksum: CRC-32C of the bytes; None if it is not known.
    """

    dtype: str
    shape: tuple[int, ...]
    path: str
    offset: int
    size: int
    checksum: Optional[int]

    @property
    def type(self) -> TensorType:
        """The variable's type."""
        return TensorType(self.dtype, self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether the bytes are the variable's value in its dtype and shape."""
        return bool(self.dtype)

    def has_type(self, type: TensorType) -> bool:
        """Whether the bytes are the value of a variable of this type."""
        return self.is_whole and self.dtype == type.dtype and self.shape == type.shape

    def read(self) -> Array:
        """The variable, in its storage dtype; raises CheckpointError if the file is shorter."""
        return self._bytes(self.size).view(self.type.storage_dtype).reshape(self.shape)

    def first_bytes(self, count: int) -> bytes:
        """Up to `count` of its first bytes."""
        return self._bytes(min(count, self.size)).tobytes()

    def _bytes(self, count: int) -> Array:
        try:
            with open_regular(self.path) as file:
                found = np.fromfile(file, np.uint8, count, offset=self.offset)
        except OSError as error:
            raise self.damaged(error.strerror or str(error)) from error
        if found.nbytes < count:
            raise self.damaged(f"{found.nbytes} of {count} bytes")
        return found

    def damaged(self, received: str) -> CheckpointError:
        """The error of a file without these bytes."""
        return CheckpointError(
            f"{self.path}: must hold {self.size} bytes at {self.offset}. Received: {received}. "
            f"{self.advice_on_damage()}"
        )

    def advice_on_damage(self) -> str:
        """A sentence of advice if the bytes are damaged."""
        return "Restore the file."


@dataclass
class IoStats:
    """Traffic of a store between memory and files so far.

    Attributes:
        bytes_read: bytes read from files, or requested.
        bytes_written: bytes written to files, or queued.
        stalled_s: seconds that callers have waited for files.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    stalled_s: float = 0.0


class Store(Protocol):
    """A store of variables. `BaseStore` implements the answers of a store in one process."""

    @property
    def specs(self) -> Mapping[str, Variable]:
        """The variables, by name."""

    def reserve(self, specs: Iterable[Variable]) -> None:
        """Adds values that live within a step, if they are not known yet.

        They are acquired and released like variables, but are not in `specs` and in no checkpoint.
        Each is written once and read once in a step.
        """

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        """Arrays of variables, readable and writable until they are released.

        Args:
            names: of variables. A variable that is acquired several times is the same memory.
            fresh: whether the caller overwrites all contents, so that they are not read.

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
        """Raises CapacityError if the variables of a group do not fit in memory together."""

    def has_value(self, name: str) -> bool:
        """Whether the variable has a value."""

    def not_finite(self, names: Iterable[str]) -> list[str]:
        """Names of the variables that hold NaN or infinity; none of them may be acquired.

        A variable that was linked and not acquired since then is not checked.
        """

    @property
    def version(self) -> int:
        """A number that grows whenever a variable is written."""

    def link_source(self, name: str, region: FileRegion) -> bool:
        """Takes a variable's value from a file, without reading it now.

        Args:
            name: of a variable that is not acquired.
            region: its bytes, whose checksum is compared when they are first read. Without a
                checksum the file must not change while the store is used, and the variable may
                only be replaced as a whole (`acquire` with `fresh`).

        Returns:
            Whether the store can link it; else the value must be written.
        """

    def linkable_regions(self) -> Optional[Mapping[str, FileRegion]]:
        """Regions of files with the values; the files do not change any more.

        Returns:
            The region of every variable that has a value; None where values are not in files.

        Raises:
            StoreError: they could not be written.
        """

    @property
    def io_stats(self) -> IoStats:
        """Traffic between memory and files."""

    def close(self) -> None:
        """Frees everything; nothing may be acquired any more."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of main memory that the store takes now."""

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of main memory that it takes when every variable has a value."""

    @property
    def linked_bytes(self) -> int:
        """Bytes of variables that are read from files of others; see `link_source`."""

    @property
    def free_bytes(self) -> Optional[int]:
        """Bytes of memory that a model may take where the store is; None for this computer."""

    # What kind of store it is.

    @property
    def gives_views(self) -> bool:
        """Whether `acquire` returns the memory of the values, and no copies.

        Variables may then be held for a whole step at no cost.
        """

    @property
    def folder(self) -> Optional[str]:
        """The folder of this wafer's files; None without files."""

    @property
    def memory_limit(self) -> Optional[int]:
        """Bytes of main memory that values in files may take; None without a limit."""

    @property
    def is_shared(self) -> bool:
        """Whether variables may be sharded over several wafers."""

    @property
    def rank(self) -> int:
        """The rank of this wafer; 0 where the store is not shared."""

    @property
    def local(self) -> Store:
        """The store of this wafer alone: the store itself where it is not shared."""

    @property
    def planned_resident_bytes(self) -> int:
        """An estimate of `total_resident_bytes` that is equal on all wafers."""

    def shard(self, owners: Mapping[str, int]) -> None:
        """Sets the owner of each variable; before the call, every wafer keeps all variables.

        Args:
            owners: rank by name; variables that all wafers keep are not listed.

        Raises:
            SwarmError: some have other owners already, or wafers do not agree.
        """

    def set_shard(self, elsewhere: Collection[str], stores_on_disk: int) -> None:
        """Sets the shard of a wafer's own store, for the check of free disk space.

        Args:
            elsewhere: names of variables that other wafers keep.
            stores_on_disk: number of stores of this job on the same disk.
        """

    def broadcast(self, names: Iterable[str], rank: int) -> None:
        """Broadcasts variables that all wafers keep from one wafer."""

    def borrow(self) -> set[str]:
        """Reads variables from the enclosing training's store from now on; returns their names."""


class BaseStore:
    """Default implementations for a store in one process, without files."""

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
        """Type of a variable or of a reserved value."""
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
    def linked_bytes(self) -> int:
        return 0

    @property
    def free_bytes(self) -> Optional[int]:
        return None

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
    """A store in main memory; `acquire` returns its arrays."""

    gives_views = True

    def __init__(self, specs: Iterable[Variable]) -> None:
        super().__init__(specs)
        self._arrays: dict[str, Array] = {}
        self._set: set[str] = set()
        self._acquired: set[str] = set()
        self._extra: Counter[str] = Counter()  # acquisitions beyond the first
        self._version = self._resident_bytes = self._mapped_bytes = 0

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        if not (fresh or self._set.issuperset(names)):
            require_values(self, names)
        held = self._arrays
        try:
            arrays = [held[name] for name in names]
        except KeyError:
            arrays = [held[name] if name in held else self._allocated(name) for name in names]
        acquired = self._acquired
        if not acquired.isdisjoint(names):
            self._extra.update(name for name in names if name in acquired)
        acquired.update(names)
        return arrays

    def _allocated(self, name: str) -> Array:
        """Allocates the array of a variable."""
        type = self._type(name)
        try:
            made = np.empty(type.static_shape, type.storage_dtype)
        except MemoryError as error:
            raise CapacityError(
                f"variable {name}: must fit in memory. Received: {type.bytes} bytes, in addition "
                f"to {self.resident_bytes} of other variables. Use a smaller model or a computer "
                "with more memory."
            ) from error
        self._arrays[name] = made
        self._resident_bytes += made.nbytes
        return made

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        acquired, again = self._acquired, self._extra
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

    def link_source(self, name: str, region: FileRegion) -> bool:
        """See Store.link_source; maps the file into memory, which writes do not change."""
        type = self._specs[name].type
        dtype = type.storage_dtype
        aligned = region.offset % dtype.itemsize == 0 and type.bytes > 0
        if (
            region.checksum is not None
            or name in self._arrays
            or not (region.has_type(type) and aligned)
        ):
            return False
        try:
            place = region.offset, type.static_shape
            self._arrays[name] = np.asarray(np.memmap(region.path, dtype, "c", *place))
        except (OSError, ValueError) as error:
            raise region.damaged(str(error)) from error
        self._mapped_bytes += type.bytes
        self._set.add(name)
        self._version += 1
        return True

    @property
    def linked_bytes(self) -> int:
        return self._mapped_bytes

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of main memory without mapped files, whose pages the system frees."""
        return super().total_resident_bytes - self._mapped_bytes

    def close(self) -> None:
        self._arrays.clear()
        self._set.clear()
        self._resident_bytes = self._mapped_bytes = 0

    @property
    def resident_bytes(self) -> int:
        """Bytes of the variables that are allocated."""
        return self._resident_bytes


def require_values(store: Store, names: Sequence[str]) -> None:
    """Raises CheckpointError if a variable has no value yet."""
    missing = [name for name in names if not store.has_value(name)]
    if missing:
        raise CheckpointError(
            f"variable {missing[0]}: must have a value before the first step. Received: none. "
            "Initialize the model, or restore a checkpoint that contains it."
        )


@contextmanager
def reading(store: Store, name: str) -> Iterator[Array]:
    """Within: the array of a variable, for reading."""
    (array,) = store.acquire([name])
    try:
        yield array
    finally:
        store.release([name])


@contextmanager
def writing(store: Store, name: str, fresh: bool = False) -> Iterator[Array]:
    """Within: the array of a variable, for writing; an exception leaves it unwritten."""
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
