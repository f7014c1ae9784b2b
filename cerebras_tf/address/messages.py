"""The messages between a client and the server of a wafer.

A client opens a connection with Hello and gets Waiting, as long as another client has the wafer,
and then Welcome. Each later message of the client is a request with one answer of the server.
Failure is the answer to any request that raised an error.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from cerebras_tf import errors
from cerebras_tf.errors import BatchCapacityError, CapacityError, CerebrasError, StoreError
from cerebras_tf.ir import Array, Variable
from cerebras_tf.runtime.protocol import (
    Accepted,
    Batch,
    Prepared,
    ProgramNeeded,
    Request,
    StepResult,
)
from cerebras_tf.user_files import reason

# Of a connection.


@dataclass(frozen=True)
class Hello:
    """The first message of a client.

    Attributes:
        protocol: see codec.PROTOCOL.
        version: of cerebras_tf.
        label: shown to others who wait for the wafer.
        lease: of an earlier connection that is continued; "" to ask for the wafer.
    """

    protocol: str
    version: str
    label: str
    lease: str = ""


@dataclass(frozen=True)
class Waiting:
    """Another client has the wafer.

    Attributes:
        position: in the queue; 1 for the next.
        holder: label of the client that has the wafer.
        held_s: seconds since it got the wafer.
    """

    position: int
    holder: str
    held_s: float


@dataclass(frozen=True)
class Welcome:
    """The client has the wafer.

    Attributes:
        version: of cerebras_tf on the server.
        incarnation: differs when the server was restarted.
        lease: names the client's right to the wafer.
        last: number of the client's last request.
        keep_s: seconds for which the lease is kept without a connection.
        threads: threads of the kernels there.
        on_files: whether variables are stored in files there.
        wafers: of the job of servers, one at each of as many ports.
    """

    version: str
    incarnation: str
    lease: str
    last: int
    keep_s: float
    threads: int
    on_files: bool = False
    wafers: int = 1


@dataclass(frozen=True)
class Failure:
    """An error, which the client raises.

    Attributes:
        kind: name of the error's class in cerebras_tf.errors.
        text: the message.
        code: see CerebrasError.
        numbers: of a BatchCapacityError: needed, available and fixed bytes.
    """

    kind: str
    text: str
    code: Optional[str] = None
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Alive:
    """Shows to the other side that this one is there; not answered."""


# Seconds between these, and seconds of silence after which the other side counts as lost.
ALIVE_S = 10.0
SILENT_S = 40.0


# The most requests that wait for their answers, and the most bytes of their arrays if several wait.
MAX_PENDING = 64
MAX_PENDING_BYTES = 64 << 20


@dataclass(frozen=True)
class Release:
    """Ends the lease."""


# Of stores.


@dataclass(frozen=True)
class OpenStore:
    """Makes a store; answered by Opened.

    Attributes:
        specs: the variables.
        lender: number of a store whose variables may be borrowed.
        runs: whether steps will run; else the variables need not fit into memory.
        shared: whether all wafers of the job make the steps; each stores a part of the variables.
    """

    specs: tuple[Variable, ...]
    lender: Optional[int] = None
    runs: bool = True
    shared: bool = False


@dataclass(frozen=True)
class Opened:
    """Number of a new store or session."""

    number: int


@dataclass(frozen=True)
class CloseStore:
    """Frees a store and its sessions."""

    store: int


@dataclass(frozen=True)
class Get:
    """Asks for a variable; answered by Content."""

    store: int
    name: str


@dataclass(frozen=True)
class Content:
    """A variable in its storage dtype."""

    array: Array


@dataclass(frozen=True)
class Put:
    """Sets a variable."""

    store: int
    name: str
    content: Array


@dataclass(frozen=True)
class Reserve:
    """See Store.reserve."""

    store: int
    specs: tuple[Variable, ...]


@dataclass(frozen=True)
class FindValues:
    """Asks for the variables that have a value; answered by Names."""

    store: int


@dataclass(frozen=True)
class FindNotFinite:
    """See Store.not_finite; answered by Names."""

    store: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Borrow:
    """See Store.borrow; answered by Names."""

    store: int


@dataclass(frozen=True)
class Broadcast:
    """See Store.broadcast."""

    store: int
    names: tuple[str, ...]
    rank: int


@dataclass(frozen=True)
class Names:
    """Names of variables."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class AskState:
    """Asks for the properties of a store; answered by Numbers."""

    store: int


# Of sessions.


@dataclass(frozen=True)
class OpenSession:
    """Makes a session on a store; answered by Opened.

    Attributes:
        profiles: whether the times of its steps may be recorded.
        loss: name of the result that the status shows; "" for none.
    """

    store: int
    trains: bool
    profiles: bool = False
    loss: str = ""


@dataclass(frozen=True)
class CloseSession:
    """See SessionProtocol.close."""

    session: int


@dataclass(frozen=True)
class Submit:
    """See SessionProtocol.submit; answered by Accepted, or by Unknown if the program is missing.

    Attributes:
        digest: of the program, see ir.program_file.
        file: the program's file; None if the server may know it.
    """

    session: int
    needed: ProgramNeeded
    digest: str
    file: Optional[Array] = None


@dataclass(frozen=True)
class Unknown:
    """The server does not have the program."""


@dataclass(frozen=True)
class Prepare:
    """See SessionProtocol.prepare."""

    session: int
    request: Request


@dataclass(frozen=True)
class Step:
    """See SessionProtocol.step; answered by Stepped or ProgramNeeded."""

    session: int
    batches: tuple[Batch, ...]
    activation_bytes: Optional[int] = None


@dataclass(frozen=True)
class Stepped:
    """A step has run; `profile_is_full`: later ones are not profiled."""

    results: tuple[StepResult, ...]
    profile_is_full: bool = False


@dataclass(frozen=True)
class AskSession:
    """Asks for the properties of a session; answered by Numbers."""

    session: int


@dataclass(frozen=True)
class StartProfile:
    """Records the times of a session's steps from now on."""

    session: int


@dataclass(frozen=True)
class TakeProfile:
    """Ends recording, and takes a part of what was recorded; answered by Profiled."""

    session: int


@dataclass(frozen=True)
class AskClock:
    """Asks for the server's time; answered by Numbers."""


@dataclass(frozen=True)
class ProfiledInstruction:
    """An instruction, with the shapes of its operands."""

    op: str
    source: str
    flops: int
    bytes_read: int
    bytes_written: int
    is_rounded: bool
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Profiled:
    """A part of what was recorded, with times of the server's clock.

    Attributes:
        is_last: whether it is the last part.
        library: name of the library that multiplies matrices.
        texts: names, to which the arrays refer by position.
        calls: of kernels: instruction, layer and direction, [n, 3] int32.
        call_times: start, seconds, and CPU seconds, [n, 3] float64.
        spans: kind, name, thread, and part and parts of a kernel or -1, [m, 5] int32.
        span_times: start and end, [m, 2] float64.
    """

    is_last: bool
    library: str
    texts: tuple[str, ...]
    instructions: tuple[ProfiledInstruction, ...]
    calls: Array
    call_times: Array
    spans: Array
    span_times: Array


@dataclass(frozen=True)
class AskRandomState:
    """See SessionProtocol.random_state; answered by Numbers."""

    session: int


@dataclass(frozen=True)
class RestoreRandomState:
    """See SessionProtocol.restore_random_state; `with_step`: the state has the global step."""

    session: int
    state: Mapping[str, int]
    with_step: bool = False


@dataclass(frozen=True)
class Numbers:
    """Numbers by name."""

    values: Mapping[str, int]


@dataclass(frozen=True)
class MeasureSpeeds:
    """See runtime.speeds; answered by Numbers, rounded to integers."""

    rounded: bool
    side: int


@dataclass(frozen=True)
class Done:
    """A request without a result was carried out."""


REQUESTS = (
    *(Alive, Hello, Release, OpenStore, CloseStore, Get, Put, Reserve, FindValues),
    *(
        FindNotFinite,
        Borrow,
        Broadcast,
        AskState,
        OpenSession,
        CloseSession,
        Submit,
        Prepare,
        Step,
        AskSession,
    ),
    *(AskRandomState, RestoreRandomState, MeasureSpeeds, StartProfile, TakeProfile, AskClock),
)
ANSWERS = (
    *(Alive, Waiting, Welcome, Failure, Opened, Content, Names, Numbers, Done, Accepted, Unknown),
    *(Prepared, ProgramNeeded, Stepped, Profiled),
)


# Errors.

_OPTIONS = re.compile(r"\bmemoryx_(dir|ram_gb)\b")  # which are the server's
_KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, CerebrasError)
}


def failure_of(error: BaseException) -> Failure:
    """An error as a message, without its traceback."""
    if isinstance(error, CerebrasError):
        kind = next(c.__name__ for c in type(error).__mro__ if _KINDS.get(c.__name__) is c)
        text, numbers = text_of(error), tuple[int, ...]()
        if isinstance(error, (CapacityError, StoreError)):  # of memory and disks
            text = _OPTIONS.sub(r"--\g<0> of `cerebras-tf serve`", text)
            text += f" The computer of the wafer is {socket.gethostname()}."
        if isinstance(error, BatchCapacityError):
            numbers = error.needed_bytes, error.available_bytes, error.fixed_bytes
        return Failure(kind, text, error.code, numbers)
    if isinstance(error, MemoryError):
        return failure_of(
            CapacityError(
                "wafer: the memory of its computer must suffice. Received: an allocation that "
                "failed there. Use a smaller model or batch."
            )
        )
    if isinstance(error, OSError):
        return failure_of(StoreError(f"wafer: {reason(error)}. See the server's log."))
    return failure_of(
        errors.GraphError(
            "wafer: a program must run as its verifier allows. Received: "
            f"{type(error).__name__}, see the server's log. Compile the model again, with the same "
            "version of cerebras_tf on both sides."
        )
    )


def text_of(error: CerebrasError) -> str:
    """The message of an error, without its code."""
    return str(error.args[0]) if error.args else ""


def error_of(failure: Failure) -> CerebrasError:
    """The error that a message describes."""
    kind: Any = _KINDS.get(failure.kind, CerebrasError)
    if kind is BatchCapacityError:
        needed, available, fixed = (*failure.numbers, 0, 0, 0)[:3]
        made: CerebrasError = BatchCapacityError(failure.text, needed, available, fixed)
    else:
        made = kind(failure.text)
    if failure.code is not None:
        made.code = failure.code
    return made
