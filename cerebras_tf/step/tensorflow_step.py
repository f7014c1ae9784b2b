"""Where a session of the estimator gets its programs: the capture of a graph, and the compiler.

One WaferStep serves one graph. Programs by shapes, memory and random numbers are the session's
affair (runtime/session.py); which tensors are fed and wanted is known here.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import operator
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.random import drawn_seed
from cerebras_tf.capture.variables import tensor_type
from cerebras_tf.compiler.assemble import replan
from cerebras_tf.compiler.fit_activations import Fitting
from cerebras_tf.compiler.pipeline import Options, compile_layers, compile_step, cut_into_layers
from cerebras_tf.console import log
from cerebras_tf.errors import (
    CapacityError,
    CerebrasError,
    GradientError,
    SizeLimitError,
    UnsupportedOpError,
)
from cerebras_tf.ir import StepGraph, TensorType, print_step
from cerebras_tf.ir.program import GLOBAL_STEP_UPDATE, HEAP, Program
from cerebras_tf.kernels.timeline import spanned
from cerebras_tf.memoryx.store import Store
from cerebras_tf.ops import Builder
from cerebras_tf.passes.split_micro_batches import COUNTS, LAST, VALUES
from cerebras_tf.runtime.client import SessionClient
from cerebras_tf.runtime.profiler import WAFER_STEP, Profiler, timed
from cerebras_tf.runtime.protocol import Request
from cerebras_tf.runtime.session import Phase, Session
from cerebras_tf.step.activation_budget import ActivationRoom
from cerebras_tf.step.cluster import ENDED, GOING
from cerebras_tf.step.fed_types import (
    check_shape,
    is_small,
    limited_type,
    smallest,
    types_with_symbols,
)
from cerebras_tf.step.micro_batches import MicroBatches
from cerebras_tf.step.padding_report import PaddingLines
from cerebras_tf.step.program_cache import CompiledPrograms, Sources, settings_of
from cerebras_tf.swarmx.swarm import Alone, Swarm
from cerebras_tf.tf_session.arrays import for_tensorflow

MakeCapture = Callable[[dict[Any, TensorType]], Capture]


class WaferStep:
    """Runs one model function's steps on the wafer.

    Attributes:
        session: runs the programs that this object makes.
        client: gives batches and programs to the session.
        store: as given.
        tensors: tensors whose values may be asked for, by name.
        error: the error that ended the last step, if any; TensorFlow's sessions cannot carry it.
        compiled_step: the step compiled last, as the passes left it; None once it was prepared
            for, and where its program was found.
        prepared: the program made before the first step, where shapes were known.
        unfitted: the program compiled last, as it is where activations have all the memory that
            they want; None where it was found compiled, and fitted.
        compiled_before: where programs that were compiled before lie; None for nowhere.
        swarm: the wafers that make the steps together.
        profiler: as given.
        parts: the parts in which a batch runs; None where it runs whole.
    """

    compiled_step: Optional[StepGraph] = None
    prepared: Optional[Program] = None
    unfitted: Optional[Program] = None
    error: Optional[BaseException] = None
    compiled_before: Optional[CompiledPrograms] = None
    parts: Optional[MicroBatches] = None
    _part = ""  # which of them is compiled

    def __init__(
        self,
        make_capture: MakeCapture,
        make_fallback: Optional[MakeCapture],
        fed: Sequence[Any],
        effects: Sequence[Any],
        global_step: str,
        store: Store,
        options: Options,
        phase: Phase,
        memory_gb: Optional[float] = None,
        control_inputs: Callable[[Any], Iterable[Any]] = operator.attrgetter("control_inputs"),
        swarm: Optional[Swarm] = None,
        loss: Optional[str] = None,
        profiler: Optional[Profiler] = None,
        neighbours: Optional[Swarm] = None,
    ) -> None:
        """Prepares a step.

        Args:
            make_capture: a fresh capture for the types of the fed tensors.
            make_fallback: one with TensorFlow's own backward graph; None outside training.
            fed: tensors the session feeds, in order.
            effects: operations whose assignments the step makes.
            global_step: name of the global step variable.
            store: the variables.
            options: how to compile.
            phase: context manager that announces a named phase.
            memory_gb: gigabytes for activations of training; None for what the machine has.
            control_inputs: those of an operation as model_fn gave them.
            swarm: the wafers that make the steps together; None for this one alone.
            loss: name of the tensor whose value is the mean over the wafers.
            profiler: times every instruction of every step; None for nobody.
            neighbours: the wafers that load a model at the same time; None for those of `swarm`.
        """
        self.swarm, self.profiler = swarm or Alone(), profiler
        backend, watching = timed(self.swarm, profiler)
        trains = bool(effects)
        self.session = Session(store, backend, watching, phase, trains, self.swarm, neighbours)
        self.client, self.store = SessionClient(self.session, self), store
        self._loss, self._has_met = loss, False
        self.tensors: dict[str, Any] = {}
        self._make_capture = self._made_with = make_capture
        self._made_for: list[TensorType] = []
        self._make_fallback, self._control_inputs = make_fallback, control_inputs
        self._fed, self._effects = list(fed), list(effects)
        self._global_step, self._phase = global_step, phase
        self._options = replace(options, price=backend.price, unfitted=self._keep_unfitted)
        self._room = ActivationRoom(self.session, store, backend, memory_gb, trains, self.swarm)
        self._wanted, self._updates = frozenset[str](), bool(self._effects)
        self._results: dict[str, np.ndarray] = {}
        self._saved: Optional[tuple[str, int]] = None
        self._numbers = itertools.count()
        # What was asked for where no program for all sizes could be had.
        self._only_numbers: set[tuple[frozenset[str], bool, str]] = set()
        self._strip = self._made_strip = options.strip
        self._said: set[str] = set()
        self._saves = True  # the step compiled last may be asked for
        self._padding = PaddingLines(options.restore, bool(effects), self._say_once)

    @property
    def program(self) -> Optional[Program]:
        """The program that ran last."""
        return self.client.program

    def want(self, names: Iterable[str], update: bool) -> None:
        """Says what the next step is for.

        Args:
            names: values it must return.
            update: whether it changes variables; a session that fetches values of a training
                model without its training op must not train.
        """
        self._wanted = frozenset(names)
        self._updates = update
        self._has_met = False

    def meet(self, says: int) -> None:
        """Tells the other wafers whether this one makes the step, once a step.

        Raises:
            StopIteration: this one does, and the data of others have ended.
        """
        if self.swarm.size == 1 or self._has_met:
            return
        self._has_met = True
        heard = self.swarm.gather(np.array(says, np.int64))
        ended, left = (np.flatnonzero(heard == word).tolist() for word in (ENDED, GOING))
        if ended and left:
            log.say(
                "training ends: the data of wafer %s have ended; the batch of wafer %s was not "
                "trained (%s left out), as a step takes one of each. One wafer with the batches of "
                "all in one trains them as a smaller last batch",
                ", ".join(map(str, ended)),
                ", ".join(map(str, left)),
                len(left),
            )
        if says == GOING and ended:
            raise StopIteration

    def run(self, global_step: int, arrays: Sequence[np.ndarray]) -> int:
        """Runs a step.

        Args:
            global_step: steps made before.
            arrays: content of the fed tensors, in order.

        Returns:
            The global step afterwards.
        """
        self.meet(GOING)
        self.client.global_step = global_step
        features = {t.name: array for t, array in zip(self._fed, arrays)}
        with spanned(WAFER_STEP, "step"):
            asked = features, self._wanted, self._updates
            if self.parts is None:
                self._results = self.client.run(*asked)
            else:
                self._results = self.parts.run(self.client, *asked, self._learn)
                features = self.parts.part(features)  # those that its program is for
        assert self.client.plan is not None
        self._padding.ran(self.client.plan, features)
        return self.client.global_step

    def _learn(self, types: Mapping[str, TensorType]) -> None:
        """Finds what becomes of the results of parts, and which sums they share."""
        self._part = LAST if self._updates else VALUES
        self.captured([types[tensor.name] for tensor in self._fed])

    def draws_to_save(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of random ops; see SessionProtocol.random_state."""
        found = self.session.random_state()
        return {name: np.array(number, np.int64) for name, number in found.items()}

    def restore_draws(self, found: Mapping[str, int]) -> None:
        """Takes what draws_to_save gave for a checkpoint."""
        self.session.restore_random_state(found)

    def saved_as(self, prefix: str) -> None:
        """Says that a checkpoint holds the variables as they are now."""
        self._saved = os.path.abspath(prefix), self.session.version

    def is_saved_as(self, prefix: str) -> bool:
        """Whether a checkpoint holds the variables as they are now."""
        return self._saved == (os.path.abspath(prefix), self.session.version)

    def result(self, name: str) -> np.ndarray:
        """A wanted value of the last step."""
        program = self.client.plan
        assert program is not None
        return for_tensorflow(self._results[name], program.slots[program.results[name]].type.dtype)

    def prepare(self) -> None:
        """Compiles before the first step where the shapes of all fed tensors are known."""
        types = self.static_types()
        if types is not None:
            named = {tensor.name: type for tensor, type in zip(self._fed, types)}
            requests = [Request(named, self._wanted, self._updates)]
            if self.parts is not None:
                self._learn(named)
                requests = self.parts.requests(requests[0])
            self._saves = False
            self.prepared, *_ = map(self.client.prepare, requests)

    def static_types(self) -> Optional[list[TensorType]]:
        """Types of the fed tensors; None where a shape is known only with the data."""
        if not all(tensor.shape.is_fully_defined() for tensor in self._fed):
            return None
        return [tensor_type(tensor) for tensor in self._fed]

    # The methods of ProgramSource.

    def compile(self, request: Request) -> Program:
        """A program for the features that came: for all their sizes where that can be had.

        Whether it can, depends on the values asked for, so one that cannot says nothing of others.
        """
        types = [request.types[tensor.name] for tensor in self._fed]
        self._part = request.part
        self._strip = self._options.strip and not request.padded and request.part != COUNTS
        if request.padded:
            self._say_once(f"batches are computed with their padding where {request.padded}")
        asked = request.wanted, request.updates, request.part
        symbolic = (
            None
            if asked in self._only_numbers
            else types_with_symbols(self._fed, types, self._numbers)
        )
        if symbolic is not None:
            program = self._for_all_sizes(symbolic)
            if program is not None:
                return self._noted(program)
            self._only_numbers.add(asked)
        return self._noted(self.compiled(types))

    def _noted(self, program: Program) -> Program:
        """The program; which part of a batch it is for is remembered."""
        if self.parts is not None:
            self.parts.note(program, self._part, self.store)
        return program

    def enlarge(self, program: Program, most: Mapping[str, int]) -> Program:
        """A program for larger batches: the same where it fits, else one that computes more twice.

        Raises:
            CapacityError: larger batches do not fit in the memory set for activations.
        """
        larger = replan(program, most, self._options.price)
        room = self._room.bytes()
        self._part = "" if self.parts is None else self.parts.part_of(program)
        if room is None or larger.arena_bytes + larger.scratch_bytes <= room:
            return self._noted(larger)
        self._strip = program.packing is not None
        slots, features = larger.slots, larger.features
        types = [
            slots[features[tensor.name]].type if tensor.name in features else smallest(tensor)
            for tensor in self._fed
        ]
        return self._noted(self._compiled(types, self._make_capture))

    def _for_all_sizes(self, types: Sequence[TensorType]) -> Optional[Program]:
        """The program for types with symbols; None where some operation cannot go without a size.

        The capture at numbers, which follows, then says what is wrong with the model, if anything.
        """
        while True:
            try:
                program = self._compiled(types, self._make_capture, tentative=True)
            except SizeLimitError as error:
                limited = [limited_type(type, error.limits) for type in types]
                if limited != types:
                    types = limited
                    continue
                reason = str(error)
            except CapacityError:
                raise
            except CerebrasError as error:
                reason = str(error)
            else:
                if not any(slot.kind == HEAP for slot in program.slots):
                    return program
                reason = "the size of a result is known only once it is computed"
            log.say("every size of a batch gets a program of its own when it comes: %s", reason)
            return None

    def captured(
        self, types: Sequence[TensorType], make_capture: Optional[MakeCapture] = None
    ) -> StepGraph:
        """The step for fed tensors of these types, not compiled.

        Raises:
            DataError: a type does not fit the tensor.
            UnsupportedOpError: operations have no IR form.
        """
        for tensor, type in zip(self._fed, types):
            check_shape(tensor, type)
        capture = (make_capture or self._make_capture)(dict(zip(self._fed, types)))
        wanted = {name: self.tensors[name] for name in self._wanted}
        for name, tensor in self.tensors.items():
            if is_small(capture.tf_type(tensor)):
                wanted[name] = tensor
        step = capture.run(wanted, self._effects if self._updates else [])
        if self._loss is not None and self._loss in step.results:
            _average(step, self._loss, self.swarm.size)
        _global_step_to_host(step, self._global_step)
        if self.parts is not None and self._part:
            self.parts.shape(step, self._part)
        return step

    def compiled_for(self, wafers: int) -> Program:
        """The program that some number of wafers would run in place of the last one, not loaded."""
        options = replace(self._options, wafers=wafers, unfitted=None, strip=self._made_strip)
        return compile_step(self.captured(self._made_for, self._made_with), options)

    def compiled(self, types: Sequence[TensorType]) -> Program:
        """The program for fed tensors of these types, not loaded."""
        if self._make_fallback is None:
            return self._compiled(types, self._make_capture)
        try:
            return self._compiled(types, self._make_capture, tentative=True)
        except GradientError as error:
            refused = error
        # An op on the way to the loss has no gradient rule: TensorFlow's own backward graph has.
        try:
            return self._compiled(types, self._make_fallback)
        except UnsupportedOpError:
            raise refused from None  # names what concerns the model

    def _compiled(
        self, types: Sequence[TensorType], make_capture: MakeCapture, tentative: bool = False
    ) -> Program:
        program = self._found(types, make_capture)
        if program is not None:
            return program
        with self._announced("capturing", tentative):
            step = self.captured(types, make_capture)
            optional = frozenset(self.tensors) - self._wanted
            layers = cut_into_layers(
                step, replace(self._options, strip=self._strip, optional=optional)
            )
        if self._strip:
            self._padding.compiled(step, make_capture is self._make_fallback)
        found: list[Fitting] = []
        with self._announced(f"compiling {layers} layers", tentative):
            program = compile_layers(step, layers, self._room.options(self._options, found))
        if step.packing is not None and not self._options.restore and self._would_spill(found):
            self._strip = False
            self._say_once("padding is computed, so that activations may rest on disk")
            return self._compiled(types, make_capture, tentative)
        for fitting in found:
            self._room.say(fitting)
        if self._global_step in program.features:
            program.global_step = self._global_step
        if self._saves:
            self.compiled_step = step
        self._made_with, self._made_for, self._made_strip = make_capture, list(types), self._strip
        if self._options.staging and not self._saves:  # weights are on files, to save memory
            written = pickle.dumps((program, self.unfitted), pickle.HIGHEST_PROTOCOL)
            del step, program
            self.unfitted = None
            gc.collect()  # what is let go of refers to itself
            # A copy made now fills gaps between what is gone.
            program, self.unfitted = pickle.loads(written)
        return program

    def _would_spill(self, found: Sequence[Fitting]) -> bool:
        """Whether activations fit on the disk alone: those without padding cannot rest there."""
        return self._room.spills and any(not fitting.fits for fitting in found)

    def _found(self, types: Sequence[TensorType], make_capture: MakeCapture) -> Optional[Program]:
        """The program from compile_dir, where it was compiled before."""
        if self.compiled_before is None or not self._fed or self.parts is not None:
            return None
        start, seed = time.monotonic(), drawn_seed(self._fed[0].graph)
        wanted = {*self._wanted, *self._small_tensors()}
        sources = self._sources(make_capture, self._strip)
        found = self.compiled_before.find(sources, types, wanted, self._room.bytes(), seed)
        if found is None:
            return None
        program, fitted = found
        self.unfitted = None if fitted else program
        log.say("compiled before, found in compile_dir: %.1f s", time.monotonic() - start)
        return program

    def _small_tensors(self) -> list[str]:
        """Names of tensors whose values every step returns."""
        return [name for name, tensor in self.tensors.items() if is_small(tensor_type(tensor))]

    def _sources(self, make_capture: MakeCapture, strip: bool) -> Sources:
        """What a program is made from."""
        whole = make_capture is self._make_fallback
        options = replace(self._options, strip=strip)
        settings = settings_of(options, self.store, whole, self._updates)
        effects = self._effects if self._updates else []
        return Sources(effects, self.tensors, self._fed, self._control_inputs, settings)

    def save(self, program: Program, folder: CompiledPrograms) -> Path:
        """Writes the program compiled last to a folder; returns its file."""
        assert self.compiled_step is not None and self.unfitted is not None
        unfitted = self.unfitted
        return folder.save(
            program,
            print_step(self.compiled_step),
            self._sources(self._made_with, self._made_strip),
            self._made_for,
            drawn_seed(self._fed[0].graph),
            unfitted.arena_bytes + unfitted.scratch_bytes,
        )

    def _keep_unfitted(self, program: Program) -> None:
        self.unfitted = program

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            log.say("%s", line)

    @contextlib.contextmanager
    def _announced(self, phase: str, tentative: bool) -> Iterator[None]:
        """Announces a phase; a tentative one does not fail, for another attempt follows."""
        error: Optional[BaseException] = None
        with self._phase(phase):
            try:
                yield
            except CerebrasError as found:
                if not tentative:
                    raise
                error = found
        if error is not None:
            raise error


def _average(step: StepGraph, name: str, wafers: int) -> None:
    """Makes a result the mean over wafers."""
    b = Builder(step.graph)
    step.results[name] = b.op("mul", b.op("wafer_sum", step.results[name]), 1 / wafers)


def _global_step_to_host(step: StepGraph, name: str) -> None:
    """The global step lives in the session: fed to the step, and returned by it."""
    if name in step.variables:
        step.features[name] = step.variables.pop(name)
    if name in step.updates:
        step.results[GLOBAL_STEP_UPDATE] = step.updates.pop(name)
