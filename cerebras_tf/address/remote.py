"""A store and sessions on a server, as the store and the session of this process are used."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Optional, Protocol, Union

import numpy as np

from cerebras_tf.address import messages as m
from cerebras_tf.address.profile import add_profile, clock_offset
from cerebras_tf.errors import BatchCapacityError, SystemUnreachableError
from cerebras_tf.ir import Array, Variable
from cerebras_tf.ir.program import Price, Program
from cerebras_tf.ir.program_file import program_bytes
from cerebras_tf.memoryx.store import BaseStore, Store
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.capacity import capacity_error
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.profiler import Profiler
from cerebras_tf.runtime.protocol import (
    Accepted,
    Batch,
    Prepared,
    ProgramNeeded,
    Request,
    StepResult,
)
from cerebras_tf.runtime.session import CheckpointFormat, SessionOfStore
from cerebras_tf.runtime.speeds import SIDE
from cerebras_tf.swarmx import job


class Link(Protocol):
    """The connection to a server."""

    def call(self, request: Any) -> Any:
        """Sends a request and returns its answer; raises the error that the server had."""

    def begin(self, request: Any, size: int = 0) -> Callable[[], Any]:
        """Sends a request; the result waits for its answer of `size` bytes, and returns it."""

    def send(self, request: Any, size: int) -> None:
        """Sends a request of `size` bytes; its error is raised by a later one."""

    @property
    def threads(self) -> int:
        """Threads of the server's kernels."""

    @property
    def on_files(self) -> bool:
        """Whether variables are stored in files there."""


class RemoteWafer:
    """The wafer of a server; implements runtime.protocol.Wafer.

    Args:
        link: the connection.
    """

    def __init__(self, link: Link) -> None:
        self._link, self.call = link, link.call
        # Costs are computed here as the server would; it computes them again to check memory.
        self.backend = CpuBackend(threads=link.threads)
        self.on_files = link.on_files

    def store(
        self,
        specs: Iterable[Variable],
        lender: Optional[Store] = None,
        runs: bool = True,
        shared: bool = False,
    ) -> Store:
        """A store of variables there; see runtime.protocol.Wafer."""
        assert lender is None or isinstance(lender, RemoteStore)
        return RemoteStore(self._link, specs, lender, runs, shared)

    def session(
        self,
        store: Store,
        trains: bool,
        profiler: Optional[Profiler] = None,
        loss: Optional[str] = None,
        checkpoints: Optional[CheckpointFormat] = None,
    ) -> RemoteSession:
        """A session there; see runtime.protocol.Wafer."""
        assert isinstance(store, RemoteStore)
        return RemoteSession(self, store, trains, profiler, loss, checkpoints)

    def speeds(self, rounded: bool, side: int = SIDE) -> Speeds:
        """See runtime.protocol.Wafer; `side` as of runtime.speeds.measured_speeds."""
        found = self.call(m.MeasureSpeeds(rounded, side)).values
        return Speeds(float(found["flops_per_s"]), float(found["bytes_per_s"]))


class RemoteStore(BaseStore):
    """The variables of a model on a server; `acquire` copies them from there.

    Args:
        link: the connection.
        lender: a store there whose variables may be borrowed.
        runs: whether steps will run; else the variables need not fit.
        is_shared: see Store.is_shared.
    """

    def __init__(
        self,
        link: Link,
        specs: Iterable[Variable],
        lender: Optional[RemoteStore] = None,
        runs: bool = True,
        is_shared: bool = False,
    ) -> None:
        super().__init__(specs)
        self._link, self.call, self.is_shared = link, link.call, is_shared
        lends = None if lender is None else lender.number
        opened = link.call(m.OpenStore(tuple(self._specs.values()), lends, runs, is_shared))
        self.number: int = opened.number
        self.is_open = True
        self._lock = threading.RLock()
        self._arrays: dict[str, Array] = {}
        self._acquired: Counter[str] = Counter()
        self._dirty: set[str] = set()
        self._with_values: Optional[set[str]] = set()  # None: must be asked for
        names = list(self._specs)
        self._following = dict(zip(names, names[1:]))
        self._last, self._in_order = "", 0  # what was read last, and reads in order until then
        self._ahead: dict[str, Callable[[], Any]] = {}  # variables that are asked for

    def reserve(self, specs: Iterable[Variable]) -> None:
        new = [spec for spec in specs if spec.name not in self._within_step]
        super().reserve(new)
        if new:
            self.call(m.Reserve(self.number, tuple(new)))

    def acquire(self, names: Sequence[str], fresh: bool = False) -> list[Array]:
        with self._lock:
            if not fresh:
                self._read_ahead(names)
            for name in names:
                if name not in self._arrays:
                    self._arrays[name] = self._made(name) if fresh else self._read(name)
            self._acquired.update(names)
            return [self._arrays[name] for name in names]

    def _made(self, name: str) -> Array:
        type = self._type(name)
        return np.empty(type.static_shape, type.storage_dtype)

    def _read(self, name: str) -> Array:
        array: Array = self._ahead.pop(name)().array
        return array

    def _read_ahead(self, names: Sequence[str]) -> None:
        """Asks for variables, and for the more after them the longer they are read in order."""
        for name in names:
            self._ask_for(name)
            is_next = self._following.get(self._last) == name
            self._last, self._in_order = name, self._in_order + 1 if is_next else 0
        name, left = self._last, m.MAX_PENDING_BYTES
        for _ in range(min(2 * self._in_order, m.MAX_PENDING // 2)):
            name = self._following.get(name, "")
            if not name:
                return
            left -= self._type(name).bytes
            if left <= 0:
                return
            self._ask_for(name)

    def _ask_for(self, name: str) -> None:
        if name not in self._ahead and name not in self._arrays:
            request = m.Get(self.number, name)
            self._ahead[name] = self._link.begin(request, self._type(name).bytes)

    def release(self, names: Sequence[str], dirty: Collection[str] = ()) -> None:
        with self._lock:
            self._dirty.update(dirty)
            for name in names:
                self._acquired[name] -= 1
                if self._acquired[name]:
                    continue
                del self._acquired[name]
                array = self._arrays.pop(name)
                if name in self._dirty:
                    self._dirty.remove(name)
                    self._ahead.pop(name, None)
                    self._link.send(m.Put(self.number, name, array), array.nbytes)
                    if self._with_values is not None:
                        self._with_values.add(name)

    def has_value(self, name: str) -> bool:
        if self._with_values is None:
            self._with_values = set(self.call(m.FindValues(self.number)).names)
        return name in self._with_values

    def forget_values(self) -> None:
        """Variables may have changed there."""
        self._with_values = None
        self._ahead.clear()

    def not_finite(self, names: Iterable[str]) -> list[str]:
        return list(self.call(m.FindNotFinite(self.number, tuple(names))).names)

    def borrow(self) -> set[str]:
        found = set(self.call(m.Borrow(self.number)).names)
        self.forget_values()
        return found

    def broadcast(self, names: Iterable[str], rank: int) -> None:
        if self.is_shared:
            self.call(m.Broadcast(self.number, tuple(names), rank))
            self.forget_values()

    @property
    def rank(self) -> int:
        return job.rank()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            with contextlib.suppress(SystemUnreachableError):  # nothing is there any more
                self.call(m.CloseStore(self.number))

    def ask(self, name: str) -> int:
        """A property of the store there."""
        return int(self.call(m.AskState(self.number)).values[name])

    @property
    def version(self) -> int:
        return self.ask("version")

    @property
    def free_bytes(self) -> Optional[int]:
        return self.ask("free_bytes")

    @property
    def resident_bytes(self) -> int:
        """Bytes of the server's memory."""
        return self.ask("resident_bytes")

    @property
    def total_resident_bytes(self) -> int:
        """Bytes of the server's memory when every variable has a value."""
        return self.ask("total_resident_bytes")


class RemoteSession(SessionOfStore):
    """A session on a server; implements SessionProtocol."""

    def __init__(
        self,
        wafer: RemoteWafer,
        store: RemoteStore,
        trains: bool,
        profiler: Optional[Profiler] = None,
        loss: Optional[str] = None,
        checkpoints: Optional[CheckpointFormat] = None,
    ) -> None:
        self._wafer, self._call = wafer, wafer.call
        self._store: RemoteStore = store
        self._checkpoints = checkpoints
        request = m.OpenSession(store.number, trains, profiler is not None, loss or "")
        self._number: int = self._call(request).number
        self._is_open = True
        self.profile_is_full = False
        if profiler is not None:
            profiler.remote = self

    def close(self) -> None:
        if self._is_open and self._store.is_open:
            self._is_open = False
            with contextlib.suppress(SystemUnreachableError):  # nothing is there any more
                self._call(m.CloseSession(self._number))

    def submit(self, program: Program, needed: ProgramNeeded) -> Accepted:
        digest, content = program_bytes(program)
        answer = self._call(m.Submit(self._number, needed, digest))
        if isinstance(answer, m.Unknown):
            file = np.frombuffer(content, np.uint8)
            answer = self._call(m.Submit(self._number, needed, digest, file))
        found: Accepted = answer
        return found

    def prepare(self, request: Request) -> Union[Prepared, ProgramNeeded]:
        found: Union[Prepared, ProgramNeeded] = self._call(m.Prepare(self._number, request))
        return found

    def step(
        self, batches: Sequence[Batch], activation_bytes: Optional[int] = None
    ) -> Union[list[StepResult], ProgramNeeded]:
        self._store.forget_values()
        answer = self._call(m.Step(self._number, tuple(batches), activation_bytes))
        if isinstance(answer, ProgramNeeded):
            return answer
        self.profile_is_full = answer.profile_is_full
        return list(answer.results)

    @property
    def price(self) -> Price:
        return self._wafer.backend.price

    def capacity_error(self, program: Program) -> Optional[BatchCapacityError]:
        found = self._call(m.AskState(self._store.number)).values
        where = " on the computer of the wafer (cs_ip)"
        return capacity_error(program, found["total_resident_bytes"], 0, found["free_bytes"], where)

    def restore_numbers(self, numbers: Mapping[str, int]) -> None:
        self._call(m.RestoreRandomState(self._number, numbers, with_step=True))

    def start_profile(self) -> None:
        """See runtime.profiler.Recorder."""
        self._call(m.StartProfile(self._number))

    def take_profile(self, profiler: Profiler) -> None:
        """See runtime.profiler.Recorder."""
        offset, is_last = clock_offset(self._call), False
        while not is_last:
            found = self._call(m.TakeProfile(self._number))
            add_profile(profiler, found, offset)
            is_last = found.is_last

    def measured_speeds(self, side: int, rounded: bool) -> Speeds:
        """See runtime.profiler.Recorder."""
        return self._wafer.speeds(rounded, side)

    def random_state(self) -> dict[str, int]:
        return dict(self._call(m.AskRandomState(self._number)).values)

    def restore_random_state(self, state: Mapping[str, int]) -> None:
        self._call(m.RestoreRandomState(self._number, dict(state)))

    def _ask(self, name: str) -> int:
        return int(self._call(m.AskSession(self._number)).values[name])

    @property
    def version(self) -> int:
        return self._ask("version")

    @property
    def global_step(self) -> int:
        return self._ask("global_step")

    @property
    def activation_limit(self) -> int:
        return self._ask("activation_limit")

    @property
    def held_bytes(self) -> int:
        return self._ask("held_bytes")

    @property
    def peak_bytes(self) -> int:
        return self._ask("peak_bytes")
