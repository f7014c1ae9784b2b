"""The session protocol: requests and answers, as values that can be sent over a network.

A session runs programs and keeps variables. It has no callbacks: if none of its programs serves a
batch, `step` returns ProgramNeeded, and the client submits a program and repeats the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional, Protocol, Union

from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.ir.program import Price, Program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.profiler import Profiler


@dataclass(frozen=True)
class Request:
    """What a program must serve.

    Attributes:
        types: type of every feature, by name; sizes are numbers.
        wanted: names of the values it must return.
        updates: whether it changes variables.
        padding_reason: why padding must be computed; "" if it may be removed.
        kind: kind of the micro-batch or of the inputs, in the program source's terms; "" for a
            whole batch.
    """

    types: Mapping[str, TensorType]
    wanted: frozenset[str] = frozenset()
    updates: bool = True
    padding_reason: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Batch:
    """A batch or micro-batch to run.

    Attributes:
        features: array of every feature, by name.
        wanted: names of the values to return.
        updates: whether it changes variables and counts as a step.
        kind: see Request.
        global_step: steps made before; None for as many as the session has counted.
        agreed_padding: that of the ProgramNeeded after which the batch is repeated.
    """

    features: Mapping[str, Array]
    wanted: frozenset[str] = frozenset()
    updates: bool = True
    kind: str = ""
    global_step: Optional[int] = None
    agreed_padding: Optional[str] = None


@dataclass(frozen=True)
class ProgramNeeded:
    """The answer to a batch that no submitted program serves.

    Attributes:
        request: what a program must serve.
        program: number of a submitted program that serves it with `sizes` as bounds; None if a
            new one must be compiled.
        sizes: the least bound of every symbol of that program, by name.
        agreed_padding: why padding is not removed, as the wafers have agreed; "" if it is removed;
            None if they have not agreed yet. The client repeats the batch with it.
    """

    request: Request
    program: Optional[int] = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    agreed_padding: Optional[str] = None


@dataclass(frozen=True)
class Accepted:
    """The answer to a submitted program.

    Attributes:
        program: its number.
        dropped: numbers of programs that the session keeps no longer.
    """

    program: int
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A program is loaded for a request.

    Attributes:
        program: its number.
        sizes: number for every symbol of the program, by name.
    """

    program: int
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class StepResult(Prepared):
    """A step has run.

    Attributes:
        values: wanted values by name, and others that cost nothing; of bfloat16 the bits.
        global_step: steps made now.
    """

    values: Mapping[str, Array]
    global_step: int


class Wafer(Protocol):
    """A wafer that is not in this process."""

    @property
    def backend(self) -> Backend:
        """What computes costs as the wafer does."""

    @property
    def on_files(self) -> bool:
        """Whether variables are stored in files there."""

    def store(
        self,
        specs: Iterable[Variable],
        lender: Optional[Store] = None,
        runs: bool = True,
        shared: bool = False,
    ) -> Store:
        """A store of variables there.

        Args:
            lender: a store there whose variables may be borrowed.
            runs: whether steps will run; else the variables need not fit.
            shared: whether all wafers of the job make the steps together.
        """

    def session(
        self,
        store: Store,
        trains: bool,
        profiler: Optional[Profiler] = None,
        loss: Optional[str] = None,
    ) -> SessionProtocol:
        """A session on one of its stores.

        Args:
            profiler: gets the times of its steps.
            loss: name of the result that the wafer shows as the loss; None for none.
        """

    def speeds(self, rounded: bool) -> Speeds:
        """See runtime.speeds.measured_speeds."""


class SessionProtocol(Protocol):
    """A session as its clients see it."""

    def submit(self, program: Program, needed: ProgramNeeded) -> Accepted:
        """Adds a program, or puts it in the place of the one that `needed.program` names.

        Raises:
            BatchCapacityError: it does not fit into memory; the session stays as it was.
            DataError: it does not serve the request, or is for another number of wafers.
        """

    def prepare(self, request: Request) -> Union[Prepared, ProgramNeeded]:
        """Loads what serves a request, before its first batch."""

    def step(
        self, batches: Sequence[Batch], activation_bytes: Optional[int] = None
    ) -> Union[list[StepResult], ProgramNeeded]:
        """Runs a step of one batch or several micro-batches; with several wafers all call it.

        Results are the same as if the micro-batches ran sequentially.

        Where variables are streamed from files, the layers of as many micro-batches as fit into
        memory alternate, so that each layer streams in once for all of them.

        Args:
            batches: the batch, or the micro-batches in order.
            activation_bytes: the most memory for activations; None for `activation_limit`.

        Raises:
            CerebrasError: the features, the memory or the variables do not allow it.
        """

    @property
    def price(self) -> Price:
        """Cost of instructions on the session's backend, for the compiler."""

    def capacity_error(self, program: Program) -> Optional[BatchCapacityError]:
        """The error that `submit` would raise for a program's memory; None if it fits."""

    @property
    def specs(self) -> Mapping[str, Variable]:
        """The variables, by name."""

    def get(self, name: str) -> Array:
        """A copy of a variable; of bfloat16 the bits.

        Raises:
            CheckpointError: it has no value.
        """

    def put(self, name: str, content: Array) -> None:
        """Sets a variable.

        Raises:
            CheckpointError: it has another shape.
            CapacityError: it does not fit into memory.
        """

    def save(self, prefix: str) -> None:
        """Writes a checkpoint there: variables, the global step and the state of random streams."""

    def restore(self, prefix: str) -> None:
        """Reads what `save` wrote; raises CheckpointError if it does not fit."""

    @property
    def version(self) -> int:
        """A number that grows whenever a variable is written."""

    @property
    def global_step(self) -> int:
        """Steps made."""

    def random_state(self) -> dict[str, int]:
        """Positions of the random streams that do not follow from the global step."""

    def restore_random_state(self, state: Mapping[str, int]) -> None:
        """Restores what `random_state` returned; missing entries follow from the global step."""

    @property
    def activation_limit(self) -> int:
        """Bytes that activations and scratch memory may take; the same on all wafers."""

    @property
    def held_bytes(self) -> int:
        """Bytes of variables and activations that are allocated now."""

    def close(self) -> None:
        """Frees programs and activations; no step may follow."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes taken at once: variables, activations and scratch memory, measured."""
