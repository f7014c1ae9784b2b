"""The entries of a schedule: one class for each kind, and the table of kinds.

A kind declares its fields and the executor's method that runs it. Encoding, decoding and text
follow from the fields. A new kind is one class here and one method of `Actions`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from cerebras_tf.errors import GraphError


class Actions(Protocol):
    """What an executor does: one method for each kind of entry."""

    def stream_in(self, entry: StreamIn) -> None:
        """Makes variables readable."""

    def compute(self, entry: Run) -> None:
        """Runs a body."""

    def stream_out(self, entry: StreamOut) -> None:
        """Writes new values of variables to the store."""

    def free(self, entry: Free) -> None:
        """Frees slots."""

    def on_wafer(self, entry: OnWafer) -> None:
        """Skips entries that another wafer runs."""

    def share(self, entry: Share) -> None:
        """Broadcasts values of one wafer to all others."""


@dataclass(frozen=True)
class Entry:
    """One entry of a schedule.

    Attributes:
        kind: its name in files and in text, a key of ENTRY_KINDS.
    """

    kind: ClassVar[str]

    def apply(self, executor: Actions) -> None:
        """Calls the executor's method for this kind, which has the kind's name by default."""
        getattr(executor, self.kind)(self)

    def encode(self) -> list[Any]:
        """JSON of the entry: its kind, then its fields in order."""
        return [self.kind, *(getattr(self, item.name) for item in fields(self))]

    def __str__(self) -> str:
        given = (f"{item.name}={getattr(self, item.name)}" for item in fields(self))
        return f"{self.kind}({', '.join(given)})"


ENTRY_KINDS: dict[str, type[Entry]] = {}
_Kind = TypeVar("_Kind", bound=type[Entry])


def entry_kind(entry: _Kind) -> _Kind:
    """Decorator: adds a kind to the table; its fields are numbers, strings and tuples of those."""
    if entry.kind in ENTRY_KINDS:
        raise GraphError(f"entry kinds: names must differ. Received: {entry.kind} twice.")
    ENTRY_KINDS[entry.kind] = entry
    return entry


def decode_entry(found: list[Any]) -> Entry:
    """The inverse of Entry.encode; raises GraphError for an unknown kind or another field count."""
    kind, *given = found
    entry = ENTRY_KINDS.get(kind)
    if entry is None:
        raise GraphError(
            f"saved program: unknown entry. Received: {kind}. Compile the model again."
        )
    if len(given) != len(fields(entry)):
        raise GraphError(
            f"saved program: an entry {kind} has {len(fields(entry))} fields. "
            f"Received: {len(given)}. Compile the model again."
        )
    return entry(*map(_tuples, given))


def _tuples(value: Any) -> Any:
    """JSON has lists only; fields of entries are tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@entry_kind
@dataclass(frozen=True)
class StreamIn(Entry):
    """Makes slots of variables readable: weights of a layer (-1: of all layers)."""

    kind = "stream_in"
    layer: int
    slots: tuple[int, ...]


@entry_kind
@dataclass(frozen=True)
class Run(Entry):
    """Runs a body on a list of slots.

    Attributes:
        layer: number of the layer; -1 for none.
        slots: what the body's positions stand for.
    """

    kind = "run"
    layer: int
    direction: str
    body: int
    slots: tuple[int, ...]

    def apply(self, executor: Actions) -> None:
        """Calls compute."""
        executor.compute(self)


@entry_kind
@dataclass(frozen=True)
class StreamOut(Entry):
    """Writes new values of variables to the store.

    Attributes:
        layer: number of the layer; -1 for none.
        stores: (name of a variable, slot that holds its value after the step).
    """

    kind = "stream_out"
    layer: int
    stores: tuple[tuple[str, int], ...]


@entry_kind
@dataclass(frozen=True)
class Free(Entry):
    """Frees slots after their last read, other than those of constants and features."""

    kind = "free"
    slots: tuple[int, ...]


@entry_kind
@dataclass(frozen=True)
class OnWafer(Entry):
    """The next `count` entries run on one wafer only, the owner of what they update."""

    kind = "on_wafer"
    wafer: int
    count: int


@entry_kind
@dataclass(frozen=True)
class Share(Entry):
    """Broadcasts what one wafer has computed.

    Attributes:
        variables: names of variables that every wafer keeps.
    """

    kind = "share"
    wafer: int
    slots: tuple[int, ...]
    variables: tuple[str, ...] = ()
