"""Runs the steps of one model: a session with its program source, micro-batches and wafers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional, Union

import numpy as np

from cerebras_tf.compiler.pipeline import Options
from cerebras_tf.errors import BatchCapacityError
from cerebras_tf.frontend.activation_budget import ActivationBudget
from cerebras_tf.frontend.front_end import FrontEnd
from cerebras_tf.frontend.micro_batches import MicroBatches
from cerebras_tf.frontend.program_source import CompilingSource
from cerebras_tf.ir import Array, TensorType
from cerebras_tf.ir.program import Program
from cerebras_tf.kernels.timeline import spanned
from cerebras_tf.memoryx.store import Store
from cerebras_tf.passes.split_micro_batches import LAST, VALUES
from cerebras_tf.runtime.backend import Backend
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.interleave import count_together
from cerebras_tf.runtime.profiler import WAFER_STEP, Profiler, make_backend
from cerebras_tf.runtime.protocol import Request, SessionProtocol, Wafer
from cerebras_tf.runtime.session import Phase, Session
from cerebras_tf.swarmx.swarm import Alone, Swarm

_HAS_BATCH, _ENDED = 0, 1  # what a wafer sends to the others before a step


def _log(line: str) -> None:
    logging.getLogger("cerebras_tf").info("%s", line)


@dataclass(frozen=True)
class RunSettings:
    """How the steps of a model are run.

    Attributes:
        memory_gb: gigabytes for activations of training; None for what the computer has.
        micro_batches: those of a step; None if it runs a batch whole.
        swarm: the wafers that make every step together.
        loading_swarm: the wafers that load a model at the same time and share memory; None for
            those of `swarm`.
        profiler: times every instruction of every step; None for no profile.
        phase: context manager that logs a named phase.
        wafer: the wafer at an address that runs the steps; None for that of this process.
    """

    memory_gb: Optional[float] = None
    micro_batches: Optional[MicroBatches] = None
    swarm: Swarm = field(default_factory=Alone)
    loading_swarm: Optional[Swarm] = None
    profiler: Optional[Profiler] = None
    phase: Phase = contextlib.nullcontext
    log: Callable[[str], Any] = _log
    wafer: Optional[Wafer] = None


class ModelStep:
    """The steps of one model.

    Args:
        model: the model, as a front end captures it.

    Attributes:
        client: sends batches and programs to the session.
        kind: differs between steps of different inputs, without micro-batches; see Request.
        prepared: the program compiled before the first step, if shapes were known.
        prepared_micro_batches: the programs of all micro-batches then, in order.
        micro_batches: those of a step; None if it runs a batch whole.
        swarm: the wafers that make the steps together.

    Example:
        step = ModelStep(front_end, MemoryStore(specs), Options())
        step.want(["loss"])
        for batch in batches:
            step.run(batch)
            print(step.results["loss"])
    """

    prepared: Optional[Program] = None
    kind = ""

    def __init__(
        self,
        model: FrontEnd,
        store: Store,
        options: Options,
        settings: Optional[RunSettings] = None,
    ) -> None:
        settings = settings or RunSettings()
        swarm = self.swarm = settings.swarm
        self.profiler, self.micro_batches = settings.profiler, settings.micro_batches
        self._model, self._log = model, settings.log
        memory_gb = settings.memory_gb
        self._activation_bytes = None if memory_gb is None else int(memory_gb * 1e9)
        self.session: SessionProtocol
        backend: Backend
        if settings.wafer is None:
            backend, listeners = make_backend(swarm, settings.profiler)
            self.session = Session(
                *(store, backend, listeners, settings.phase, model.trains, swarm),
                settings.loading_swarm,
            )
        else:
            backend = settings.wafer.backend
            self.session = settings.wafer.session(
                store, model.trains, profiler=settings.profiler, loss=model.loss
            )
        budget = ActivationBudget(
            store,
            backend,
            settings.memory_gb,
            model.trains,
            swarm,
            lambda: self.session.activation_limit,
            options.precision,
            None if settings.wafer is None else settings.wafer.speeds,
        )
        self.source = CompilingSource(
            model,
            store,
            replace(options, price=backend.price),
            budget,
            swarm.size,
            settings.phase,
            settings.log,
            settings.micro_batches,
        )
        self.client, self.store = SessionClient(self.session, self.source), store
        self.results: dict[str, Array] = {}
        self.prepared_micro_batches: list[Program] = []
        self._wanted, self._updates = frozenset[str](), model.trains
        self._has_agreed = False

    @property
    def program(self) -> Optional[Program]:
        """The program that ran last."""
        return self.client.program

    def want(self, results: Iterable[str], updates: Optional[bool] = None) -> None:
        """Sets what the next steps return and do.

        Args:
            updates: whether steps update variables; None if the model trains.
        """
        self._wanted = frozenset(results)
        self._updates = self._model.trains if updates is None else updates
        self._has_agreed = False

    def agree(self, has_batch: bool) -> None:
        """Agrees with the other wafers, once per step, whether all have a batch.

        Raises:
            StopIteration: this wafer has a batch and others have none.
        """
        if self.swarm.size == 1 or self._has_agreed:
            return
        self._has_agreed = True
        found = self.swarm.gather(np.array(_HAS_BATCH if has_batch else _ENDED, np.int64))
        ended, left = (np.flatnonzero(found == word).tolist() for word in (_ENDED, _HAS_BATCH))
        if ended and left:
            self._log(
                f"training ends: the data of wafer {', '.join(map(str, ended))} have ended. The "
                f"batch of wafer {', '.join(map(str, left))} is dropped ({len(left)} dropped), "
                "because a step takes one batch from each wafer. To train on it, use one wafer "
                "with a larger batch size"
            )
        if has_batch and ended:
            raise StopIteration

    def run(
        self,
        features: Union[Mapping[str, Array], Sequence[Mapping[str, Array]]],
        global_step: Optional[int] = None,
    ) -> int:
        """Runs a step; `results` then has its values.

        Args:
            features: array of every feature, by name; with micro-batches that are parts of a batch,
                of the whole batch; where each is a batch of its own, one such mapping for each.
            global_step: steps made before; None to continue from the last step.

        Returns:
            The global step after the step.
        """
        self.agree(True)
        client = self.client
        if global_step is not None:
            client.global_step = global_step
        with spanned(WAFER_STEP, "step"), self._advising():
            asked = self._wanted, self._updates
            if self.micro_batches is None:
                assert isinstance(features, Mapping)
                self.results = client.run(features, *asked, self.kind)
            else:
                parts = self.micro_batches.parts(features)
                most = self._activation_bytes
                self.results = self.micro_batches.run(
                    client, parts, *asked, self._capture_micro_batch, most
                )
        return client.global_step

    def prepare(self, types: Optional[Mapping[str, TensorType]] = None) -> None:
        """Compiles before the first step if the shapes of all features are known.

        Args:
            types: of the features of a batch, or of a micro-batch; None for those that the model
                declares.
        """
        types = self.static_types() if types is None else types
        if types is None:
            return
        requests = [self.request(types)]
        if self.micro_batches is not None:
            self._capture_micro_batch(types)
            requests = self.micro_batches.requests(requests[0])
        with self._advising():
            self.prepared, *others = map(self.client.prepare, requests)
        if self.micro_batches is not None and self._updates:
            first, *middle = others[: 2 if self.micro_batches.count > 2 else 1]
            middle *= self.micro_batches.count - 2
            self.prepared_micro_batches = [first, *middle, self.prepared]

    def compile_to_save(self, types: Mapping[str, TensorType]) -> Program:
        """Compiles all programs of a step, for `source.save`; returns that of the update.

        Args:
            types: of the features of a batch, or of a micro-batch.
        """
        requests = [self.request(types)]
        if self.micro_batches is not None:
            self._capture_micro_batch(types)
            requests = self.micro_batches.requests(requests[0])
        fits = self.session.capacity_error
        return self.source.compile_to_save(requests, lambda program: fits(program) is None)

    def count_together(self) -> int:
        """How many micro-batches have activations at once; see runtime.interleave."""
        programs = self.prepared_micro_batches
        return count_together(programs, self.store, self.activation_bytes) if programs else 1

    @property
    def activation_bytes(self) -> int:
        """Bytes that activations may take: the user's limit, and free memory."""
        limit = self.session.activation_limit
        return limit if self._activation_bytes is None else min(limit, self._activation_bytes)

    @contextlib.contextmanager
    def _advising(self) -> Iterator[None]:
        """Within: the error of a batch that does not fit names one that would."""
        try:
            yield
        except BatchCapacityError as error:
            program = self.source.program
            if program is None or self.session.capacity_error(program) is None:
                raise
            raise self.source.with_advice(error, program) from None

    def static_types(self) -> Optional[dict[str, TensorType]]:
        """Types of the features; None if a shape is known only with a batch."""
        types = {feature.name: feature.static_type for feature in self._model.features}
        known = {name: type for name, type in types.items() if type is not None}
        return known if len(known) == len(types) else None

    def request(self, types: Mapping[str, TensorType], kind: str = "") -> Request:
        """The request for a step on features of these types."""
        return Request(types, self._wanted, self._updates, kind=kind)

    def _capture_micro_batch(self, types: Mapping[str, TensorType]) -> None:
        """Captures the step, to find how results of micro-batches combine."""
        self.source.capture(self.request(types, LAST if self._updates else VALUES))

    def close(self) -> None:
        """Frees activations, results and all programs but the last; no step may follow."""
        self.session.close()
        self.client.close()
        self.results = {}
        self.prepared, self.prepared_micro_batches = None, []

    def draws_to_save(self) -> dict[str, Array]:
        """What a checkpoint must hold of random operations; see SessionProtocol.random_state."""
        found = self.session.random_state()
        return {name: np.array(number, np.int64) for name, number in found.items()}

    def restore_draws(self, found: Mapping[str, int]) -> None:
        """Restores what `draws_to_save` returned for a checkpoint."""
        self.session.restore_random_state(found)
