"""Compiles the programs of one model: for all batch sizes if possible, within the memory budget."""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.compiler.assemble import replan
from cerebras_tf.compiler.fit_activations import Fitting
from cerebras_tf.compiler.pipeline import Options, compile_layers, compile_step, cut_into_layers
from cerebras_tf.errors import (
    BatchCapacityError,
    CapacityError,
    CerebrasError,
    ConfigError,
    GradientError,
    GraphError,
    SizeLimitError,
    UnsupportedOpError,
)
from cerebras_tf.frontend.activation_budget import ActivationBudget
from cerebras_tf.frontend.batch_advice import with_advice
from cerebras_tf.frontend.front_end import FrontEnd, is_small, limited_type, types_with_symbols
from cerebras_tf.frontend.micro_batches import MicroBatches
from cerebras_tf.frontend.program_cache import CacheKey, ProgramCache, settings_of
from cerebras_tf.ir import StepGraph, TensorType, print_step
from cerebras_tf.ir.dimensions import bound_of
from cerebras_tf.ir.program import BEFORE, GLOBAL_STEP_UPDATE, HEAP, Program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.ops import Builder
from cerebras_tf.passes.batch_facts import BatchFacts
from cerebras_tf.passes.split_micro_batches import COUNTS, LAST, UNKNOWN, split_micro_batches
from cerebras_tf.runtime.protocol import Request
from cerebras_tf.runtime.session import Phase

_BATCHES = 8  # that decide which sizes are equal


@dataclass(frozen=True)
class _Target:
    """A program to compile.

    Attributes:
        types: types of the features, by name.
        wanted: names of the values to return.
        updates: whether the step updates variables.
        kind: the kind of micro-batch; "" for whole batches.
        strip: whether padding is removed if possible.
        fallback: whether the framework's own backward graph is captured.
    """

    types: Mapping[str, TensorType]
    wanted: frozenset[str]
    updates: bool
    kind: str
    strip: bool
    fallback: bool = False


@dataclass(frozen=True)
class _Compiled:
    """A program to save, with its step after the passes."""

    program: Program
    step: StepGraph
    target: _Target
    unfitted: Program


class CompilingSource:
    """Makes the programs of one model for a session; see runtime.session.Programs.

    Args:
        model: the model, as a front end captures it.
        wafers: number of wafers that run each program together.
        phase: context manager that logs a named phase.
        log: logs a line.
        micro_batches: those of a step; None if it runs a batch whole.

    Attributes:
        cache: where compiled programs are looked for; None for nowhere.
        saves: whether programs that are compiled are saved in the cache.
        can_split: returns whether the front end can split its batches into micro-batches. It is
            called before micro-batches are advised.
        padding_option: what turns padding removal off, for a log line.
        program: the program that was made last.
        unfitted: the last program as it is where activations have all the memory they want; None
            if a program was found in the cache that was fitted into memory.
    """

    cache: Optional[ProgramCache] = None
    saves = False
    padding_option = "use_vsl: False"
    program: Optional[Program] = None
    unfitted: Optional[Program] = None
    _last: _Target

    def __init__(
        self,
        model: FrontEnd,
        store: Store,
        options: Options,
        budget: ActivationBudget,
        wafers: int,
        phase: Phase,
        log: Callable[[str], Any],
        micro_batches: Optional[MicroBatches],
    ) -> None:
        self.micro_batches = micro_batches
        self.can_split: Callable[[], bool] = lambda: True
        self._model, self._store, self._budget = model, store, budget
        self._wafers, self._phase, self._log = wafers, phase, log
        self._options = replace(options, unfitted=self._keep_unfitted)
        # Requests for which no program for all sizes can be compiled.
        self._fixed_sizes: set[tuple[frozenset[str], bool, str]] = set()
        self._batches: list[Mapping[str, TensorType]] = []  # the last that had no program
        self._targets: dict[int, _Target] = {}  # by the identity of their programs
        self._logged: set[str] = set()
        self._to_save: Optional[list[_Compiled]] = None
        # A step that `capture` captured, until a program is compiled.
        self._captured: Optional[tuple[_Target, StepGraph]] = None

    def compile(self, request: Request) -> Program:
        """A program for these features, for all sizes of a batch if possible.

        This depends on the requested values.
        """
        if request.padding_reason:
            self._log_once(f"padding is not removed from batches where {request.padding_reason}")
        target = self._target(request)
        asked = request.wanted, request.updates, request.kind
        if asked not in self._fixed_sizes:
            self._batches = [*self._batches[1 - _BATCHES :], request.types]
            numbers = itertools.count()
            types = types_with_symbols(self._model.features, self._batches, numbers)
            if types is not None:
                program = self._compile_symbolic(replace(target, types=types))
                if program is not None:
                    return self._registered(program, target)
                self._fixed_sizes.add(asked)
        return self._registered(self._compile_static(target), target)

    def enlarge(self, program: Program, bounds: Mapping[str, int]) -> Program:
        """A program for larger batches: the same one if it fits, else one with recomputation.

        Raises:
            CapacityError: larger batches do not fit in the memory for activations.
        """
        larger = replan(program, bounds, self._options.price)
        available = self._budget.bytes()
        target = self._targets[id(program)]
        if available is None or larger.arena_bytes + larger.scratch_bytes <= available:
            return self._registered(larger, target)
        types = {
            feature.name: larger.slots[larger.features[feature.name]].type
            if feature.name in larger.features
            else feature.smallest_type
            for feature in self._model.features
        }
        wanted = frozenset(program.results) & self._model.results.keys()
        target = replace(target, types=types, wanted=wanted, strip=program.packing is not None)
        return self._registered(self._compile(target), target)

    def capture(self, request: Request) -> StepGraph:
        """The step for a request, captured and not compiled.

        Raises:
            DataError: the type of a feature does not match the model.
            UnsupportedOpError: operations have no IR form.
        """
        target = self._target(request)
        step = self._capture(target)
        self._captured = target, step
        return step

    def compile_to_save(
        self, requests: Iterable[Request], fits: Callable[[Program], bool]
    ) -> Program:
        """Compiles without looking into the cache, and keeps the steps for `save`.

        Args:
            requests: those of a step.
            fits: whether a program fits on this computer. If the first does not, the others would
                not run here, and are not compiled.

        Returns:
            The program of the first request.
        """
        self.cache = None
        saved: list[_Compiled] = []
        self._to_save = saved
        first, *others = requests
        program = self.compile(first)
        del saved[:-1]  # attempts before were given up
        last, unfitted = self._last, self.unfitted
        if others and not fits(program):
            self._log("the other micro-batches are not compiled, because this one does not fit")
            return program
        for request in others:
            before = len(saved)
            self.compile(request)
            saved[before:] = saved[-1:]
        saved.append(saved.pop(0))
        self.program, self._last, self.unfitted = program, last, unfitted
        return program

    def save(self, cache: ProgramCache) -> Path:
        """Writes the programs that `compile_to_save` compiled; returns the file of the last."""
        assert self._to_save
        for item in self._to_save:
            path = self._save(cache, item)
        return path

    def _save(self, cache: ProgramCache, item: _Compiled) -> Path:
        needed = item.unfitted.arena_bytes + item.unfitted.scratch_bytes
        text, seed = print_step(item.step), self._model.seed()
        return cache.save(item.program, text, self._key(item.target), seed, needed)

    def compile_for(self, wafers: int) -> Program:
        """The program that another number of wafers would run in place of the last one."""
        options = replace(self._options, wafers=wafers, unfitted=None, strip=self._last.strip)
        return compile_step(self._capture(self._last), options)

    def with_advice(self, error: BatchCapacityError, program: Program) -> BatchCapacityError:
        """The error with what would fit in place of the last batch, if training on one wafer."""
        types = [self._last.types[feature.name] for feature in self._model.features]
        rows = {type.shape[0] for type in types if type.rank}
        if len(rows) != 1 or self._wafers > 1 or not self._model.trains:
            return error
        (size,) = rows
        count: Optional[int] = None  # micro-batches need a size that is known before the batch
        if isinstance(size, int) and self._options.streaming:
            if self.micro_batches is None:
                count = 1 if self._splits() else None
            elif self.micro_batches.rows is not None:  # else they are batches of a step
                count = self.micro_batches.count
        return with_advice(error, program, bound_of(size or 0), count)

    def _splits(self) -> bool:
        """Whether micro-batches can compute the last step."""
        given = [name for name, type in self._last.types.items() if type.rank]
        try:
            step = self._capture(self._last)
            BatchFacts(step, None, given).require_mean_losses()
            combined, _ = split_micro_batches(step, LAST, 1, given)
        except CerebrasError:
            return False
        values = (combined.get(name) for name in self._last.wanted)
        return UNKNOWN not in values and self.can_split()

    def _target(self, request: Request) -> _Target:
        strip = (
            self._options.strip
            and not request.padding_reason
            and request.kind not in (BEFORE, COUNTS)
        )
        return _Target(request.types, request.wanted, request.updates, request.kind, strip)

    def _registered(self, program: Program, target: _Target) -> Program:
        """Registers a program, so that `enlarge` finds its target; returns it."""
        self.program = program
        self._targets[id(program)] = target
        weakref.finalize(program, self._targets.pop, id(program), None)
        if self.micro_batches is not None:
            self.micro_batches.reserve_sums(program, self._store)
        return program

    def _compile_symbolic(self, target: _Target) -> Optional[Program]:
        """The program for types with symbols; None if an operation needs a number.

        A capture with numbers follows then; it raises if the model is wrong.
        """
        while True:
            try:
                program = self._compile(target, tentative=True)
            except SizeLimitError as error:
                limits = error.limits
                types = {name: limited_type(type, limits) for name, type in target.types.items()}
                if types != target.types:
                    target = replace(target, types=types)
                    continue
                reason = str(error)
            except CapacityError:
                raise
            except CerebrasError as error:
                reason = str(error)
            else:
                if not any(slot.kind == HEAP for slot in program.slots):
                    return program
                reason = "the size of a result is known only after it is computed"
            self._log(f"a program is compiled for each batch size: {reason}")
            return None

    def _compile_static(self, target: _Target) -> Program:
        """The program for types whose sizes are numbers."""
        if not self._model.has_fallback:
            return self._compile(target)
        try:
            return self._compile(target, tentative=True)
        except GradientError as error:
            refused = error
        # An operation between variables and loss has no gradient rule; the framework has one.
        try:
            return self._compile(replace(target, fallback=True))
        except UnsupportedOpError:
            raise refused from None  # names what concerns the model

    def _compile(self, target: _Target, tentative: bool = False) -> Program:
        program = self._load(target)
        if program is not None:
            return program
        known, self._captured = self._captured, None
        with self._logged_phase("capturing", tentative):
            step = known[1] if known and known[0] == target else self._capture(target)
            optional = frozenset(self._model.results) - target.wanted
            options = replace(self._options, strip=target.strip, optional=optional)
            layers = cut_into_layers(step, options)
        if target.strip:
            self._report_padding(step.padding_kept, target.fallback)
        found: list[Fitting] = []
        with self._logged_phase(f"compiling {layers} layers", tentative):
            program = compile_layers(step, layers, self._budget.options(self._options, found))
        would_spill = self._budget.spills and any(not fitting.fits for fitting in found)
        if step.packing is not None and not self._options.restore and would_spill:
            self._log_once("padding is not removed, so that activations can be spilled to disk")
            return self._compile(replace(target, strip=False), tentative)
        self._last = target
        for fitting in found:
            try:
                self._budget.check(fitting)
            except BatchCapacityError as error:
                raise self.with_advice(error, program) from None
            self._log(str(fitting))
        if self._model.global_step in program.features:
            program.global_step = self._model.global_step
        if self.saves and self.cache is not None and self.unfitted is not None:
            self._save(self.cache, _Compiled(program, step, target, self.unfitted))
        if self._to_save is not None:
            assert self.unfitted is not None
            self._to_save.append(_Compiled(program, step, target, self.unfitted))
        elif self._options.staging:  # weights are on files, to save memory
            written = pickle.dumps((program, self.unfitted), pickle.HIGHEST_PROTOCOL)
            del step, program
            self.unfitted = None
            gc.collect()  # a step refers to itself
            # A copy made now fills the gaps that the step leaves.
            program, self.unfitted = pickle.loads(written)
        return program

    def _report_padding(self, kept: str, fallback: bool) -> None:
        """Logs why padding is not removed, if it is not.

        Args:
            kept: the reason; "" if there is nothing to log.
            fallback: whether the step has the framework's own backward graph.

        Raises:
            ConfigError: training requires padding removal.
        """
        required, trains = self._options.restore, self._model.trains
        if not kept or not (required or trains):
            return
        if fallback:
            kept = (
                "padding is not removed: an operation between weights and loss has no gradient "
                "rule, so the backward graph of the framework is used"
            )
        kept = kept.rstrip(".")
        if required and trains:
            raise ConfigError(
                "use_vsl: padding must not influence any variable or result. "
                f"Received: {kept}. Set use_vsl to False, or leave it out."
            )
        self._log_once(f"{kept} ({self.padding_option} turns this message off)")

    def _capture(self, target: _Target) -> StepGraph:
        model = self._model
        for feature in model.features:
            feature.check(target.types[feature.name])
        types = {feature.name: target.types[feature.name] for feature in model.features}
        wanted = target.wanted
        if self.micro_batches is not None and target.kind == COUNTS:
            wanted = self.micro_batches.wanted  # the sums that a step with these values reads
        results = [*wanted, *(n for n in self._returned(target) if n not in wanted)]

        def capture(rows: Mapping[str, int]) -> StepGraph:
            given = {
                name: type.with_shape((rows[name], *type.shape[1:])) if name in rows else type
                for name, type in types.items()
            }
            try:
                step = model.capture(given, results, target.updates, target.fallback)
            except GraphError as error:
                if not target.kind or self.micro_batches is None or self.micro_batches.rows is None:
                    raise
                raise UnsupportedOpError(
                    f"micro_batches: the model must take batches of other sizes. Received: {error} "
                    "Use tf.shape(x)[0] for the number of rows, or remove micro_batches."
                ) from error
            if model.loss is not None and model.loss in step.results and self._wafers > 1:
                _average(step, model.loss, self._wafers)
            _move_global_step(step, model.global_step)
            return step

        step = capture({})
        if self.micro_batches is not None and target.kind:
            self.micro_batches.transform(step, target.kind, capture)
            for name in self.micro_batches.approximated(target.wanted):
                self._log_once(
                    f"micro_batches: '{name}' is no mean and no sum over the batch. Its mean over "
                    "the micro-batches is returned, which approximates it"
                )
        return step

    def _returned(self, target: _Target) -> dict[str, TensorType]:
        """Small values that a program returns in any case, with their types, by name."""
        if target.kind == BEFORE:
            return {}
        return {name: type for name, type in self._model.results.items() if is_small(type)}

    def _load(self, target: _Target) -> Optional[Program]:
        """The program from the cache, if it was compiled before."""
        if self.cache is None or not self._model.features:
            return None
        start = time.monotonic()
        wanted, available = target.wanted | self._returned(target).keys(), self._budget.bytes()
        if self.micro_batches is not None:
            wanted = self.micro_batches.returned(wanted, target.wanted, target.kind)
        found = self.cache.find(self._key(target), wanted, available, self._model.seed())
        if found is None:
            return None
        program, fitted = found
        self._last = target
        self.unfitted = None if fitted else program
        self._log(f"loaded compiled program from compile_dir: {time.monotonic() - start:.1f} s")
        return program

    def _key(self, target: _Target) -> CacheKey:
        options = replace(self._options, strip=target.strip)
        split = self.micro_batches
        return CacheKey(
            (
                *settings_of(options, self._store, target.types, target.fallback, target.updates),
                *(() if split is None else split.settings(target.kind)),
            ),
            lambda results: self._model.digest(results, target.updates),
        )

    def _keep_unfitted(self, program: Program) -> None:
        self.unfitted = program

    def _log_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            self._log(line)

    @contextlib.contextmanager
    def _logged_phase(self, phase: str, tentative: bool) -> Iterator[None]:
        """Logs a phase. A tentative one does not count as failed: another attempt follows."""
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


def _move_global_step(step: StepGraph, name: str) -> None:
    """The session keeps the global step: it is a feature and a result of the step."""
    if name in step.variables:
        step.features[name] = step.variables.pop(name)
    if name in step.updates:
        step.results[GLOBAL_STEP_UPDATE] = step.updates.pop(name)
