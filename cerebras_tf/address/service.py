"""Carries out the requests of the client that has the wafer: stores, programs and sessions.

What arrives is not trusted. Programs are verified, their variables are compared with those of the
store, and the costs of their instructions are computed again. No request names a path.
"""

from __future__ import annotations

import collections
import functools
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from cerebras_tf.address import messages as m
from cerebras_tf.address.profile import profiled
from cerebras_tf.errors import CapacityError, DataError, GraphError
from cerebras_tf.ir import Array, TensorType, Variable
from cerebras_tf.ir.program import Program
from cerebras_tf.ir.program_file import parse_program
from cerebras_tf.kernels.timeline import spanned
from cerebras_tf.memoryx.borrowing_store import BorrowingStore
from cerebras_tf.memoryx.disk import FileDisk, PlannedDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.process_folder import folder_of
from cerebras_tf.memoryx.store import MemoryStore, Store, reading, write
from cerebras_tf.runtime.capacity import available_bytes, trim_heap
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.profiler import REMOTE_STEP, Profiler, make_backend
from cerebras_tf.runtime.session import Session
from cerebras_tf.runtime.shared_store import SharedStore
from cerebras_tf.runtime.speeds import measured_speeds
from cerebras_tf.runtime.streaming_plan import check_disk
from cerebras_tf.runtime.verify_program import verify_program
from cerebras_tf.swarmx import mpi
from cerebras_tf.user_files import parsing

_MAX_STORES = 64
_MAX_SESSIONS = 256
_MAX_SIDE = 4096
_SHOWN = 2000  # losses
_TIMED = 20  # steps, for the rate
_STORE_NUMBERS = ("version", "resident_bytes", "total_resident_bytes")
_SESSION_NUMBERS = ("version", "global_step", "activation_limit", "held_bytes", "peak_bytes")


@dataclass(frozen=True)
class ServiceSettings:
    """What the owner of the computer allows.

    Attributes:
        memory_bytes: for variables, activations and scratch memory; None for what is free.
        max_programs: programs that are kept for later steps and runs.
        memoryx_dir: folder of the files that store variables; None: in main memory.
        memoryx_bytes: main memory for variables with `memoryx_dir`; None for half of all memory.
    """

    memory_bytes: Optional[int] = None
    max_programs: int = 256
    memoryx_dir: Optional[str] = None
    memoryx_bytes: Optional[int] = None


class Service:
    """The stores and sessions of one client, and the programs of all."""

    def __init__(self, settings: Optional[ServiceSettings] = None) -> None:
        self._settings = settings or ServiceSettings()
        self._backend, self._swarm = CpuBackend(), mpi.swarm()
        self._programs: dict[str, Program] = {}  # by digest, in the order of their last use
        self._numbers = itertools.count(1)
        self._stores: dict[int, Store] = {}
        self._reserved: dict[int, dict[str, TensorType]] = {}  # values within a step, by store
        self._sessions: dict[int, tuple[int, Session]] = {}  # with the number of its store
        self._profilers: dict[int, Profiler] = {}  # by session
        self._shown: dict[int, str] = {}  # name of the loss, by session
        self._steps = 0
        self._losses: collections.deque[tuple[int, float]] = collections.deque(maxlen=_SHOWN)
        self._times: collections.deque[float] = collections.deque(maxlen=_TIMED)
        self._held_bytes = 0

    @property
    def on_files(self) -> bool:
        """Whether variables are stored in files."""
        return self._settings.memoryx_dir is not None

    def end(self) -> None:
        """Frees what the client has made."""
        for number in list(self._stores):
            self._close(number)
        self._steps, self._held_bytes = 0, 0
        self._losses.clear()
        self._times.clear()
        trim_heap()

    def progress(self) -> dict[str, Any]:
        """Steps, losses and memory; may be called by other threads."""
        times = list(self._times)
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
        return {
            "steps": self._steps,
            "steps_per_s": rate,
            "losses": list(self._losses),
            "held_bytes": self._held_bytes,
            "programs": len(self._programs),
        }

    @functools.singledispatchmethod
    def answer(self, request: Any) -> Any:
        """Carries out a request.

        Raises:
            Exception: the request failed; see messages.failure_of.
        """
        raise _fault("a request that can be answered", type(request).__name__)

    # Stores.

    @answer.register
    def _(self, request: m.OpenStore) -> m.Opened:
        _require(len(self._stores) < _MAX_STORES, f"at most {_MAX_STORES} stores", "more")
        _check_specs(request.specs)
        _require(not request.shared or self._swarm.size > 1, "a store of one wafer", "several")
        own = self._new_store(request.specs, request.runs)
        if request.shared:
            own = SharedStore(own, self._swarm)
        if request.lender is None and request.runs:
            self._check_memory(own.planned_resident_bytes)
        if request.lender is not None:
            own = BorrowingStore(own, self._store(request.lender))
        number = next(self._numbers)
        self._stores[number], self._reserved[number] = own, {}
        return m.Opened(number)

    def _new_store(self, specs: Sequence[Variable], runs: bool) -> Store:
        settings = self._settings
        folder, most = settings.memoryx_dir, settings.memoryx_bytes
        if folder is None:
            return MemoryStore(specs)
        most = self._free_bytes() // 2 if most is None else most
        if not runs:
            return FileStore(specs, PlannedDisk(most, folder))
        if self._swarm.size > 1:
            folder = folder_of(self._swarm.rank, folder)
        check_disk(specs, folder, self._swarm.size)
        return FileStore(specs, FileDisk(folder, most))

    @answer.register
    def _(self, request: m.CloseStore) -> m.Done:
        self._store(request.store)
        self._close(request.store)
        return m.Done()

    def _close(self, number: int) -> None:
        for key in [key for key, (store, _) in self._sessions.items() if store == number]:
            self._close_session(key)
        self._stores.pop(number).close()
        del self._reserved[number]

    @answer.register
    def _(self, request: m.Get) -> m.Content:
        store = self._store(request.store)
        _require_names([request.name], store.specs)
        with reading(store, request.name) as array:
            return m.Content(array if store.gives_views else array.copy())

    @answer.register
    def _(self, request: m.Put) -> m.Done:
        store = self._store(request.store)
        _require_names([request.name], store.specs)
        wanted, found = store.specs[request.name].type, request.content
        kind = TensorType(found.dtype.name, found.shape)
        is_same = kind.storage_dtype == wanted.storage_dtype and kind.shape == wanted.shape
        _require(is_same, f"{request.name} as {wanted}", kind)
        self._check_memory(0 if store.has_value(request.name) else wanted.bytes)
        write(store, request.name, found)
        return m.Done()

    @answer.register
    def _(self, request: m.Reserve) -> m.Done:
        store = self._store(request.store)
        _check_specs(request.specs)
        self._check_memory(sum(spec.type.bytes for spec in request.specs))
        for spec in request.specs:
            self._reserve(request.store, spec.name, spec.type)
        store.reserve(request.specs)
        return m.Done()

    @answer.register
    def _(self, request: m.FindValues) -> m.Names:
        store = self._store(request.store)
        return m.Names(tuple(filter(store.has_value, store.specs)))

    @answer.register
    def _(self, request: m.FindNotFinite) -> m.Names:
        store = self._store(request.store)
        _require_names(request.names, store.specs)
        return m.Names(tuple(store.not_finite(request.names)))

    @answer.register
    def _(self, request: m.Borrow) -> m.Names:
        return m.Names(tuple(sorted(self._store(request.store).borrow())))

    @answer.register
    def _(self, request: m.Broadcast) -> m.Done:
        store = self._store(request.store)
        _require_names(request.names, filter(store.has_value, store.specs))
        _require(0 <= request.rank < self._swarm.size, "the rank of a wafer", request.rank)
        store.broadcast(request.names, request.rank)
        return m.Done()

    @answer.register
    def _(self, request: m.AskState) -> m.Numbers:
        store = self._store(request.store)
        return m.Numbers(
            {
                **{name: int(getattr(store, name)) for name in _STORE_NUMBERS},
                "free_bytes": self._free_bytes(),
            }
        )

    # Sessions.

    @answer.register
    def _(self, request: m.OpenSession) -> m.Opened:
        _require(len(self._sessions) < _MAX_SESSIONS, f"at most {_MAX_SESSIONS} sessions", "more")
        store = self._store(request.store)
        number = next(self._numbers)
        most, swarm = self._settings.memory_bytes, self._swarm if store.is_shared else None
        if most is None and swarm is None and self._swarm.size > 1:
            most = available_bytes() // self._swarm.size
        profiler = Profiler() if request.profiles else None
        backend, listeners = make_backend(swarm, profiler)
        session = Session(
            store, backend, listeners, trains=request.trains, swarm=swarm, memory_bytes=most
        )
        self._sessions[number] = request.store, session
        if profiler is not None:
            self._profilers[number] = profiler
        self._shown[number] = request.loss
        return m.Opened(number)

    @answer.register
    def _(self, request: m.CloseSession) -> m.Done:
        self._session(request.session)
        self._close_session(request.session)
        return m.Done()

    def _close_session(self, number: int) -> None:
        self._sessions.pop(number)[1].close()
        del self._shown[number]
        profiler = self._profilers.pop(number, None)
        if profiler is not None:
            profiler.pause()

    @answer.register
    def _(self, request: m.StartProfile) -> m.Done:
        self._profiler(request.session).start()
        return m.Done()

    @answer.register
    def _(self, request: m.TakeProfile) -> m.Profiled:
        profiler = self._profiler(request.session)
        profiler.pause()
        return profiled(profiler)

    @answer.register
    def _(self, request: m.AskClock) -> m.Numbers:
        return m.Numbers({"ns": time.perf_counter_ns()})

    def _profiler(self, session: int) -> Profiler:
        _require(session in self._profilers, "a session that is profiled", session)
        return self._profilers[session]

    @answer.register
    def _(self, request: m.Submit) -> Any:
        number, session = self._session(request.session)
        if request.file is None:
            program = self._programs.get(request.digest)
            if program is None:
                return m.Unknown()
            self._keep(request.digest, program)
        else:
            program = self._parsed(request)
        self._check_variables(program, number)
        return session.submit(program, request.needed)

    def _parsed(self, request: m.Submit) -> Program:
        assert request.file is not None
        digest, program = parse_program(request.file.tobytes())
        _require(digest == request.digest, f"a program with digest {request.digest:.64}", digest)
        try:
            with parsing():
                verify_program(program)
                program = program.priced(self._backend.price)
        except ValueError as error:
            raise GraphError(f"{str(error).rstrip('.')}. Compile the model again.") from error
        self._keep(digest, program)
        return program

    def _keep(self, digest: str, program: Program) -> None:
        self._programs.pop(digest, None)
        self._programs[digest] = program
        while len(self._programs) > self._settings.max_programs:
            del self._programs[next(iter(self._programs))]

    @answer.register
    def _(self, request: m.Prepare) -> Any:
        return self._session(request.session)[1].prepare(request.request)

    @answer.register
    def _(self, request: m.Step) -> Any:
        session = self._session(request.session)[1]
        _require(bool(request.batches), "a batch", "none")
        profiler = self._profilers.get(request.session)
        with spanned(REMOTE_STEP, "step"):
            found = session.step(request.batches, request.activation_bytes)
        if not isinstance(found, list):
            return found
        losses = [r.values.get(self._shown[request.session]) for r in found]
        updates = any(batch.updates for batch in request.batches)
        self._note(found[-1].global_step, session, losses if updates else [])
        is_full = False
        if profiler is not None and profiler.is_full:
            profiler.pause()
            is_full = True
        return m.Stepped(tuple(replace(r, values=dict(r.values)) for r in found), is_full)

    def _note(self, step: int, session: Session, losses: Sequence[Optional[Array]]) -> None:
        """Notes for `progress` that a step has run; `losses` are those of its micro-batches."""
        self._steps += 1
        self._times.append(time.monotonic())
        self._held_bytes = session.held_bytes
        found = [float(loss) for loss in losses if loss is not None and loss.size == 1]
        if found:
            self._losses.append((step, sum(found) / len(found)))

    @answer.register
    def _(self, request: m.AskSession) -> m.Numbers:
        session = self._session(request.session)[1]
        return m.Numbers({name: int(getattr(session, name)) for name in _SESSION_NUMBERS})

    @answer.register
    def _(self, request: m.AskRandomState) -> m.Numbers:
        return m.Numbers(self._session(request.session)[1].random_state())

    @answer.register
    def _(self, request: m.RestoreRandomState) -> m.Done:
        session = self._session(request.session)[1]
        restore = session.restore_numbers if request.with_step else session.restore_random_state
        restore(request.state)
        return m.Done()

    @answer.register
    def _(self, request: m.MeasureSpeeds) -> m.Numbers:
        _require(0 < request.side <= _MAX_SIDE, f"a side of 1 to {_MAX_SIDE}", request.side)
        found = measured_speeds(request.side, request.rounded)
        return m.Numbers({name: int(value) for name, value in vars(found).items()})

    # Checks.

    def _store(self, number: int) -> Store:
        _require(number in self._stores, "a store that is open", number)
        return self._stores[number]

    def _session(self, number: int) -> tuple[int, Session]:
        _require(number in self._sessions, "a session that is open", number)
        return self._sessions[number]

    def _check_variables(self, program: Program, number: int) -> None:
        """Checks that a program's variables are those of the store: kernels rely on their types."""
        store = self._stores[number]
        for name, slot in program.staged.items():
            self._reserve(number, name, program.slots[slot].type)
        for name, slot in program.variables.items():
            spec, found = store.specs.get(name), program.slots[slot].type
            wanted = self._reserved[number].get(name) if spec is None else spec.type
            _require(wanted == found, f"{name} as in the store, {wanted}", found)

    def _reserve(self, store: int, name: str, type: TensorType) -> None:
        """Fixes the type of a value within a step."""
        _require(name not in self._stores[store].specs, "names that are no variables", name)
        known = self._reserved[store].setdefault(name, type)
        _require(known == type, f"{name} as before, {known}", type)

    def _free_bytes(self) -> int:
        """Bytes that variables and activations may take, with those that they take now."""
        most = self._settings.memory_bytes
        held = sum(store.resident_bytes for store in self._stores.values())
        return available_bytes() + held if most is None else most

    def _check_memory(self, needed: int) -> None:
        """Raises CapacityError if bytes of variables do not fit in addition to others."""
        held = sum(store.resident_bytes for store in self._stores.values())
        free = self._free_bytes() - held
        if needed > free:
            raise CapacityError(
                "wafer: variables must fit in the memory of its computer. Received: "
                f"{needed} bytes, and {max(free, 0)} bytes that are free. Use a smaller model, "
                "a wafer with more memory, or a larger --max_memory_gb of `cerebras-tf serve`."
            )


def _check_specs(specs: Iterable[Variable]) -> None:
    specs = list(specs)
    names = {spec.name for spec in specs}
    _require(len(names) == len(specs) and "" not in names, "variables with names of their own", "")


def _require_names(names: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    _require(not unknown, "names of variables of the store", unknown[:1])


def _require(holds: bool, rule: str, received: Any) -> None:
    if not holds:
        raise _fault(rule, received)


def _fault(rule: str, received: Any) -> DataError:
    return DataError(
        f"wafer: a request must have {rule}. Received: {received!s:.100}. Use the same version of "
        "cerebras_tf on both sides."
    )
