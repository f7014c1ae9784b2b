"""Where a session of the estimator gets its programs: the capture of a graph, and the compiler.

One WaferStep serves one graph. Programs by shapes, memory and random numbers are the session's
affair (runtime/session.py); which tensors are fed and wanted is known here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.capture import Capture
from cerebras_tf.capture.variables import tensor_type
from cerebras_tf.compiler.assemble import replan
from cerebras_tf.compiler.fit_activations import Budget, Fitting
from cerebras_tf.compiler.pipeline import Options, compile_layers, cut_into_layers
from cerebras_tf.errors import (
    CapacityError,
    CerebrasError,
    DataError,
    SizeLimitError,
    UnsupportedOpError,
)
from cerebras_tf.estimator.arrays import for_tensorflow
from cerebras_tf.estimator.checkpoint_content import RANDOM_MADE_KEY, RANDOM_STEP_KEY
from cerebras_tf.ir import Dim, StepGraph, TensorType
from cerebras_tf.ir.dimensions import UNLIMITED
from cerebras_tf.ir.program import GLOBAL_STEP_UPDATE, HEAP, Program
from cerebras_tf.memoryx.store import Store
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.session import Phase, Request, Session
from cerebras_tf.runtime.speeds import measured_speeds

MakeCapture = Callable[[dict[Any, TensorType]], Capture]
# Wanted values of at most this many bytes are returned by every step; larger ones on request.
_SMALL_BYTES = 1 << 16


class WaferStep:
    """Runs one model function's steps on the wafer.

    Attributes:
        session: runs the programs that this object makes.
        tensors: tensors whose values may be asked for, by name.
        error: the error that ended the last step, if any; TensorFlow's sessions cannot carry it.
        compiled_step: the step compiled last, as the passes left it.
        prepared: the program made before the first step, where shapes were known.
    """

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
    ) -> None:
        """Prepares a step.

        Args:
            make_capture: a fresh capture for the types of the fed tensors.
            make_fallback: one that takes TensorFlow's backward graph as it is; None outside
                training.
            fed: tensors the session feeds, in order.
            effects: operations whose assignments the step makes.
            global_step: name of the global step variable.
            store: the variables.
            options: how to compile.
            phase: context manager that announces a named phase.
            memory_gb: gigabytes that activations of training may take; None for what the machine
                has.
        """
        backend = CpuBackend()
        self.session = Session(self, store, backend, phase=phase, trains=bool(effects))
        self.compiled_step: Optional[StepGraph] = None
        self.prepared: Optional[Program] = None
        self.tensors: dict[str, Any] = {}
        self.error: Optional[BaseException] = None
        self._make_capture = make_capture
        self._make_fallback = make_fallback
        self._fed = list(fed)
        self._effects = list(effects)
        self._global_step = global_step
        self._options = replace(options, price=backend.price)
        self._phase = phase
        self._memory_gb = memory_gb
        self._wanted: frozenset[str] = frozenset()
        self._updates = bool(self._effects)
        self._results: dict[str, np.ndarray] = {}
        self._draws_from: Optional[int] = None
        self._saved: Optional[tuple[str, int]] = None
        self._numbers = itertools.count()
        # What was asked for where no program for all sizes could be had.
        self._only_numbers: set[tuple[frozenset[str], bool]] = set()

    @property
    def program(self) -> Optional[Program]:
        """The program that ran last."""
        return self.session.program

    def want(self, names: Iterable[str], update: bool) -> None:
        """Says what the next step is for.

        Args:
            names: values it must return.
            update: whether it changes variables; a session that fetches values of a training
                model without its training op must not train.
        """
        self._wanted = frozenset(names)
        self._updates = update

    def run(self, global_step: int, arrays: Sequence[np.ndarray]) -> int:
        """Runs a step.

        Args:
            global_step: steps made before.
            arrays: content of the fed tensors, in order.

        Returns:
            The global step afterwards.
        """
        if self._draws_from is None:  # a run that begins, or goes on from another's checkpoint
            self.draw_from(global_step if self._effects else 0)
        self.session.global_step = global_step
        features = {t.name: array for t, array in zip(self._fed, arrays)}
        self._results = self.session.run(features, self._wanted, self._updates)
        return self.session.global_step

    def draw_from(self, count: int) -> None:
        """Says how often random ops have drawn before the first step of this session."""
        self._draws_from = self.session.draws = count

    def draws_to_save(self) -> dict[str, np.ndarray]:
        """What a checkpoint must say of random ops, beside the global step.

        The global step does not tell how often they have drawn where a step of the model takes
        several runs, as in gradient accumulation; nor how much, where batches differ in size.
        """
        found = {RANDOM_MADE_KEY + name: number for name, number in self.session.made.items()}
        if self._draws_from is not None and self.session.draws != self.session.global_step:
            found[RANDOM_STEP_KEY] = self.session.draws
        return {name: np.array(number, np.int64) for name, number in found.items()}

    def restore_draws(self, found: Mapping[str, int]) -> None:
        """Takes what draws_to_save gave for a checkpoint."""
        if RANDOM_STEP_KEY in found:
            self.draw_from(found[RANDOM_STEP_KEY])
        self.session.made = {
            name[len(RANDOM_MADE_KEY) :]: number
            for name, number in found.items()
            if name.startswith(RANDOM_MADE_KEY)
        }

    def saved_as(self, prefix: str) -> None:
        """Says that a checkpoint holds the variables as they are now."""
        self._saved = os.path.abspath(prefix), self.session.store.version

    def is_saved_as(self, prefix: str) -> bool:
        """Whether a checkpoint holds the variables as they are now."""
        return self._saved == (os.path.abspath(prefix), self.session.store.version)

    def result(self, name: str) -> np.ndarray:
        """A wanted value of the last step."""
        program = self.session.program
        assert program is not None
        return for_tensorflow(self._results[name], program.slots[program.results[name]].type.dtype)

    def prepare(self) -> None:
        """Compiles before the first step where the shapes of all fed tensors are known."""
        types = self.static_types()
        if types is not None:
            named = {tensor.name: type for tensor, type in zip(self._fed, types)}
            request = Request(named, self._wanted, self._updates)
            self.prepared = self.session.prepare(request).program

    def static_types(self) -> Optional[list[TensorType]]:
        """Types of the fed tensors; None where a shape is known only with the data."""
        if not all(tensor.shape.is_fully_defined() for tensor in self._fed):
            return None
        return [tensor_type(tensor) for tensor in self._fed]

    # What the session asks of its source of programs.

    def compile(self, request: Request) -> Program:
        """A program for the features that came: for all their sizes where that can be had.

        Whether it can, depends on the values asked for, so one that cannot says nothing of others.
        """
        types = [request.types[tensor.name] for tensor in self._fed]
        asked = request.wanted, request.updates
        symbolic = None if asked in self._only_numbers else self._with_symbols(types)
        if symbolic is not None:
            program = self._for_all_sizes(symbolic)
            if program is not None:
                return program
            self._only_numbers.add(asked)
        return self.compiled(types)

    def enlarge(self, program: Program, most: Mapping[str, int]) -> Program:
        """A program for larger batches: the same where it fits, else one that computes more twice.

        Raises:
            CapacityError: larger batches do not fit in the memory set for activations.
        """
        larger = replan(program, most, self._options.price)
        room = self._room()
        if room is None or larger.arena_bytes + larger.scratch_bytes <= room:
            return larger
        slots, features = larger.slots, larger.features
        types = [
            slots[features[tensor.name]].type if tensor.name in features else _smallest(tensor)
            for tensor in self._fed
        ]
        return self._compiled(types, self._make_capture)

    def _with_symbols(self, types: Sequence[TensorType]) -> Optional[list[TensorType]]:
        """Types with symbols for sizes that the graph leaves open; None where there are none.

        Sizes that are equal now share a symbol: a batch that contradicts it gets a program of its
        own.
        """
        symbols: dict[int, Any] = {}
        found = []
        for tensor, type in zip(self._fed, types):
            static = tensor.shape.as_list() if tensor.shape.rank is not None else []
            dims: list[Any] = list(type.shape)
            for axis, (known, size) in enumerate(zip(static, type.shape)):
                if known is None and isinstance(size, int):
                    if size == 0:
                        return None
                    if size not in symbols:
                        symbols[size] = Dim.symbol(f"d{next(self._numbers)}", size, UNLIMITED)
                    dims[axis] = symbols[size]
            found.append(type.with_shape(tuple(dims)))
        return found if symbols else None

    def _for_all_sizes(self, types: Sequence[TensorType]) -> Optional[Program]:
        """The program for types with symbols; None where some operation cannot go without a size.

        The capture at numbers, which follows, then says what is wrong with the model, if anything.
        """
        while True:
            try:
                program = self._compiled(types, self._make_capture, tentative=True)
            except SizeLimitError as error:
                limited = [_limited(type, error.limits) for type in types]
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
            tf.compat.v1.logging.info(
                "every size of a batch gets a program of its own when it comes: %s", reason
            )
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
            _check_shape(tensor, type)
        capture = (make_capture or self._make_capture)(dict(zip(self._fed, types)))
        wanted = {name: self.tensors[name] for name in self._wanted}
        for name, tensor in self.tensors.items():
            if _is_small(capture.tf_type(tensor)):
                wanted[name] = tensor
        step = capture.run(wanted, self._effects if self._updates else [])
        _global_step_to_host(step, self._global_step)
        return step

    def compiled(self, types: Sequence[TensorType]) -> Program:
        """The program for fed tensors of these types, not loaded."""
        if self._make_fallback is None:
            return self._compiled(types, self._make_capture)
        try:
            return self._compiled(types, self._make_capture, tentative=True)
        except UnsupportedOpError as error:
            refused = error
        # An op on the way to the loss has no gradient rule: TensorFlow's own backward graph has.
        try:
            return self._compiled(types, self._make_fallback)
        except UnsupportedOpError:
            raise refused from None  # names what concerns the model

    def _compiled(
        self, types: Sequence[TensorType], make_capture: MakeCapture, tentative: bool = False
    ) -> Program:
        with self._announced("capturing", tentative):
            step = self.captured(types, make_capture)
            layers = cut_into_layers(step, self._options)
        found: list[Fitting] = []
        with self._announced(f"compiling {layers} layers", tentative):
            program = compile_layers(step, layers, self._options_within(found))
        for fitting in found:
            self._say(fitting)
        if self._global_step in program.features:
            program.global_step = self._global_step
        self.compiled_step = step
        return program

    def _room(self) -> Optional[int]:
        """Bytes that activations may take; None where there is no choice what they take."""
        if not self._effects:
            return None
        if self._memory_gb is not None:
            return int(self._memory_gb * 1e9)
        room = self.session.room_for_activations
        return room if room > 0 else None  # not even the variables fit: that will be said

    def _options_within(self, found: list[Fitting]) -> Options:
        """How to compile, so that activations fit; what was chosen for that goes to a list."""
        room = self._room()
        if room is None:
            return self._options
        return replace(self._options, budget=Budget(room, measured_speeds, found.append))

    def _say(self, fitting: Fitting) -> None:
        """Says what was computed twice; raises CapacityError where that is less than was asked."""
        if self._memory_gb is None or fitting.fits:
            tf.compat.v1.logging.info("%s", fitting)
            return
        least = float(f"{fitting.planned_bytes * 1.005 / 1e9:.3g}")  # not below when rounded
        raise CapacityError(
            f"wafer_memory_gb: activations, gradients and scratch memory must fit in it. Received: "
            f"{self._memory_gb:g}; {fitting.needed_bytes / 1e9:.3g} GB are needed, "
            f"{fitting.planned_bytes / 1e9:.3g} GB where layers are computed twice. Set it to "
            f"{least:g}, or lower train_input.batch_size or max_sequence_length."
        )

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


def _limited(type: TensorType, limits: Mapping[str, int]) -> TensorType:
    """The type of a feature, no symbol of it above a limit."""
    dims = []
    for dim in type.shape:
        for symbol in dim.symbols if isinstance(dim, Dim) else ():
            limit = min(symbol.limit, limits.get(symbol.name, symbol.limit))
            dim = Dim.symbol(symbol.name, symbol.most, limit)
        dims.append(dim)
    return type.with_shape(tuple(dims))


def _smallest(tensor: Any) -> TensorType:
    """A type for a tensor that nothing reads."""
    sizes = tensor.shape.as_list() if tensor.shape.rank is not None else []
    return TensorType(tensor.dtype.base_dtype.name, tuple(size or 1 for size in sizes))


def _is_small(type: TensorType) -> bool:
    return type.is_static and type.bytes <= _SMALL_BYTES


def _global_step_to_host(step: StepGraph, name: str) -> None:
    """The global step lives in the session: fed to the step, and returned by it."""
    if name in step.variables:
        step.features[name] = step.variables.pop(name)
    if name in step.updates:
        step.results[GLOBAL_STEP_UPDATE] = step.updates.pop(name)


def _check_shape(tensor: Any, type: TensorType) -> None:
    """Raises DataError where fed content does not fit the tensor's static shape."""
    known = [dim if isinstance(dim, int) else None for dim in type.shape]
    if not tensor.shape.is_compatible_with(known):
        raise DataError(
            f"feature {tensor.name}: shape must fit {tensor.shape}. Received: {list(type.shape)}. "
            "Correct the input function."
        )
