"""The client of a session: supplies the programs that batches need.

session = Session(store, CpuBackend())
client = SessionClient(session, SavedProgram(program))
results = client.run({"x": batch})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional, Protocol, Union

from cerebras_tf.errors import DataError
from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import Program
from cerebras_tf.runtime.protocol import Batch, Prepared, ProgramNeeded, Request, SessionProtocol
from cerebras_tf.runtime.sizes import solve_sizes


class ProgramSource(Protocol):
    """Provides programs: compiled by a front end, or read from a file."""

    def compile(self, request: Request) -> Program:
        """A program that serves the request; it may serve other sizes and return more values.

        Raises:
            CerebrasError: the source has none.
        """

    def enlarge(self, program: Program, bounds: Mapping[str, int]) -> Program:
        """One of its programs with other bounds of its symbols.

        Raises:
            DataError: the source cannot change bounds.
        """


class SavedProgram:
    """The source that has one program, loaded from a file."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def compile(self, request: Request) -> Program:
        """The program; raises DataError where the request is not for it."""
        if request.padding_reason and self._program.packing is not None:
            raise DataError(
                "saved program: padding of its batches must be removable. Received: a batch where "
                f"{request.padding_reason}. Compile the model with use_vsl=False."
            )
        missing = sorted(request.wanted - set(self._program.results))
        if missing:
            raise DataError(
                "saved program: requested values must be among its results, "
                f"{', '.join(sorted(self._program.results))}. Received: {', '.join(missing)}. "
                "Compile the model with them."
            )
        if solve_sizes(self._program, request.types) is None:
            raise DataError(
                f"saved program: features must be {_shown(self._program.given)}. "
                f"Received: {_shown(request.types)}. Compile the model for these."
            )
        return self._program

    def enlarge(self, program: Program, bounds: Mapping[str, int]) -> Program:
        """Raises DataError: the memory of a saved program is planned."""
        raise DataError(
            f"saved program: sizes must be at most "
            f"{ {s.name: s.bound for s in program.symbols} }. Received: {dict(bounds)}. "
            "Compile the model for larger batches."
        )


@dataclass
class SessionClient:
    """Runs steps on a session with programs of a source.

    Attributes:
        session: runs the programs, here or elsewhere.
        source: where programs come from.
        global_step: steps made; set it where a run resumes.
        plan: the program that ran last, with symbols for its sizes; None before the first step.
    """

    session: SessionProtocol
    source: ProgramSource
    global_step: int = 0
    plan: Optional[Program] = None

    def __post_init__(self) -> None:
        self._submitted: dict[int, Program] = {}
        self._sizes: Mapping[str, int] = {}  # of the plan

    def run(
        self,
        features: Mapping[str, Array],
        wanted: frozenset[str] = frozenset(),
        updates: bool = True,
        kind: str = "",
    ) -> dict[str, Array]:
        """Runs a step, and compiles a program for it if there is none.

        Args:
            features: array of every feature, by name.
            wanted: names of the values to return.
            updates: whether it changes variables and counts as a step.
            kind: see Request.

        Returns:
            Wanted values by name, and others that cost nothing; of bfloat16 the bits.

        Raises:
            CerebrasError: the features, the memory or the variables do not allow it.
        """
        return self._step([Batch(features, wanted, updates, kind, self.global_step)], None)[0]

    def run_micro_batches(
        self, batches: Sequence[Batch], activation_bytes: Optional[int] = None
    ) -> list[dict[str, Array]]:
        """Runs the micro-batches of one step; see SessionProtocol.step.

        Returns:
            What `run` returns, for every micro-batch.
        """
        started = [replace(batch, global_step=self.global_step) for batch in batches]
        return self._step(started, activation_bytes)

    def _step(
        self, batches: list[Batch], activation_bytes: Optional[int]
    ) -> list[dict[str, Array]]:
        while True:
            answer = self.session.step(batches, activation_bytes)
            if not isinstance(answer, ProgramNeeded):
                break
            self._supply(answer)
            if len(batches) == 1:
                batches = [replace(batches[0], agreed_padding=answer.agreed_padding)]
        self.plan, self._sizes = self._submitted[answer[-1].program], answer[-1].sizes
        self.global_step = answer[-1].global_step
        return [dict(result.values) for result in answer]

    def prepare(self, request: Request) -> Program:
        """Loads a program for a request; returns it with numbers for its sizes."""
        answer: Union[Prepared, ProgramNeeded] = self.session.prepare(request)
        while isinstance(answer, ProgramNeeded):
            self._supply(answer)
            answer = self.session.prepare(request)
        return self._sized(self._submitted[answer.program], answer.sizes)

    def close(self) -> None:
        """Forgets the programs but the last; no step may follow."""
        self._submitted.clear()

    @property
    def program(self) -> Optional[Program]:
        """The program that ran last, with the numbers that its sizes had; None before."""
        return None if self.plan is None else self._sized(self.plan, self._sizes)

    def _sized(self, program: Program, sizes: Mapping[str, int]) -> Program:
        return program.at(sizes, self.session.price) if sizes else program

    def _supply(self, needed: ProgramNeeded) -> None:
        """Compiles and submits the program that the session needs."""
        if needed.program is None:
            program = self.source.compile(needed.request)
        else:
            program = self.source.enlarge(self._submitted[needed.program], needed.sizes)
        accepted = self.session.submit(program, needed)
        self._submitted[accepted.program] = program
        for number in accepted.dropped:
            del self._submitted[number]


def _shown(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{name} {type}" for name, type in types.items())
