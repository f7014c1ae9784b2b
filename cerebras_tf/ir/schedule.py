"""The steps of a schedule: one class a kind, and the table that files, printing and machines share.

A kind says what its fields are and which action of a machine it asks for; encoding, decoding and
text follow from the fields. A new kind is one class here and one method of `Actions`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from cerebras_tf.errors import GraphError


class Actions(Protocol):
    """What a machine does: one method a kind of step."""

    def stream_in(self, step: StreamIn) -> None:
        """Makes variables readable."""

    def compute(self, step: Run) -> None:
        """Runs a body."""

    def stream_out(self, step: StreamOut) -> None:
        """Hands new values of variables back."""

    def free(self, step: Free) -> None:
        """Forgets slots."""

    def on_wafer(self, step: OnWafer) -> None:
        """Leaves out steps that another wafer runs."""

    def share(self, step: Share) -> None:
        """Hands values of one wafer to all others."""


@dataclass(frozen=True)
class Entry:
    """One entry of a schedule.

    Attributes:
        kind: its name in files and in text, a key of ENTRY_KINDS.
    """

    kind: ClassVar[str]

    def apply(self, machine: Actions) -> None:
        """Asks a machine for the action of this kind."""
        raise NotImplementedError

    def encode(self) -> list[Any]:
        """JSON of the step: its kind, then its fields in order."""
        return [self.kind, *(getattr(self, item.name) for item in fields(self))]

    def __str__(self) -> str:
        given = (f"{item.name}={getattr(self, item.name)}" for item in fields(self))
        return f"{self.kind}({', '.join(given)})"


ENTRY_KINDS: dict[str, type[Entry]] = {}
_Kind = TypeVar("_Kind", bound=type[Entry])


def entry_kind(step: _Kind) -> _Kind:
    """Decorator: adds a kind to the table; its fields are numbers, texts and tuples of those."""
    if step.kind in ENTRY_KINDS:
        raise GraphError(f"step kinds: names must differ. Received: {step.kind} twice. Rename one.")
    ENTRY_KINDS[step.kind] = step
    return step


def decode_entry(found: list[Any]) -> Entry:
    """The inverse of Entry.encode; raises GraphError for an unknown kind or another field count."""
    kind, *given = found
    step = ENTRY_KINDS.get(kind)
    if step is None:
        raise GraphError(f"saved program: unknown step. Received: {kind}. Compile the model again.")
    if len(given) != len(fields(step)):
        raise GraphError(
            f"saved program: a step {kind} has {len(fields(step))} fields. "
            f"Received: {len(given)}. Compile the model again."
        )
    return step(*map(_tuples, given))


def _tuples(value: Any) -> Any:
    """JSON knows lists only; fields of steps are tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@entry_kind
@dataclass(frozen=True)
class StreamIn(Entry):
    """Weights of a layer arrive: slots of variables become readable.

    Attributes:
        layer: number of the layer; -1 for all of them.
        slots: slots of variables.
    """

    kind = "stream_in"
    layer: int
    slots: tuple[int, ...]

    def apply(self, machine: Actions) -> None:
        """Asks for stream_in."""
        machine.stream_in(self)


@entry_kind
@dataclass(frozen=True)
class Run(Entry):
    """A body runs on a list of slots.

    Attributes:
        layer: number of the layer; -1 for none.
        direction: "forward", "backward" or "update".
        body: number of the body.
        slots: what the body's positions stand for.
    """

    kind = "run"
    layer: int
    direction: str
    body: int
    slots: tuple[int, ...]

    def apply(self, machine: Actions) -> None:
        """Asks for compute."""
        machine.compute(self)


@entry_kind
@dataclass(frozen=True)
class StreamOut(Entry):
    """New values leave.

    Attributes:
        layer: number of the layer; -1 for none.
        stores: (name of a variable, slot that holds its value after the step).
    """

    kind = "stream_out"
    layer: int
    stores: tuple[tuple[str, int], ...]

    def apply(self, machine: Actions) -> None:
        """Asks for stream_out."""
        machine.stream_out(self)


@entry_kind
@dataclass(frozen=True)
class Free(Entry):
    """Slots nobody reads any more; those of variables go back to the store.

    Attributes:
        slots: any slots but those of constants and features.
    """

    kind = "free"
    slots: tuple[int, ...]

    def apply(self, machine: Actions) -> None:
        """Asks for free."""
        machine.free(self)


@entry_kind
@dataclass(frozen=True)
class OnWafer(Entry):
    """The next steps run on one wafer of a job only, the owner of what they update.

    Attributes:
        wafer: its number.
        count: how many steps.
    """

    kind = "on_wafer"
    wafer: int
    count: int

    def apply(self, machine: Actions) -> None:
        """Asks for on_wafer."""
        machine.on_wafer(self)


@entry_kind
@dataclass(frozen=True)
class Share(Entry):
    """What one wafer of a job has computed goes to all others.

    Attributes:
        wafer: its number.
        slots: values.
        variables: names of variables that every wafer keeps.
    """

    kind = "share"
    wafer: int
    slots: tuple[int, ...]
    variables: tuple[str, ...] = ()

    def apply(self, machine: Actions) -> None:
        """Asks for share."""
        machine.share(self)
