"""The wafer's side of a session: compiles steps for the shapes that come, and runs them.

One WaferStep serves one graph. It holds a compiled variant for every combination of feature shapes
and wanted values met so far. It deliberately knows no sessions and no hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

import numpy as np

from cerebras_tf.capture.capture import RANDOM_STEP, Capture
from cerebras_tf.capture.variables import tensor_type
from cerebras_tf.compiler.pipeline import Options, compile_layers, cut_into_layers
from cerebras_tf.errors import DataError, UnsupportedOpError
from cerebras_tf.ir import Graph, StepGraph, TensorType
from cerebras_tf.ir.program import Program
from cerebras_tf.memoryx.stream import MemoryX
from cerebras_tf.runtime.executor import Machine

GLOBAL_STEP_UPDATE = "global_step/update"
Phase = Callable[[str], Any]
MakeCapture = Callable[[dict[Any, TensorType]], Capture]
# Wanted values of at most this many bytes are returned by every step; larger ones on request.
_SMALL_BYTES = 1 << 16
# Compiled variants kept; batches of more different shapes than this are compiled again.
MOST_VARIANTS = 32


class WaferStep:
    """Runs one model function's steps on the wafer.

    Attributes:
        memoryx: the variables.
        tensors: tensors whose values may be asked for, by name.
        error: the error that ended the last step, if any; sessions cannot carry it.
        program: the program that ran last.
        graph: the graph compiled last, as the passes left it.
    """

    def __init__(
        self,
        make_capture: MakeCapture,
        make_fallback: Optional[MakeCapture],
        fed: Sequence[Any],
        effects: Sequence[Any],
        global_step: str,
        memoryx: MemoryX,
        options: Options,
        phase: Phase,
        check: Callable[[Program], None],
    ) -> None:
        """Prepares a step.

        Args:
            make_capture: a fresh capture for the concrete types of the fed tensors.
            make_fallback: one that takes TensorFlow's backward graph as it is; None outside
                training.
            fed: tensors the session feeds, in order.
            effects: operations whose assignments the step makes.
            global_step: name of the global step variable.
            memoryx: the variables.
            options: how to compile.
            phase: context manager that announces a named phase.
            check: refuses a program that does not fit in memory.
        """
        self._check = check
        self.graph: Optional[Graph] = None
        self.memoryx = memoryx
        self.tensors: dict[str, Any] = {}
        self.error: Optional[BaseException] = None
        self.program: Optional[Program] = None
        self._make_capture = make_capture
        self._make_fallback = make_fallback
        self._fed = list(fed)
        self._effects = list(effects)
        self._global_step = global_step
        self._options = options
        self._phase = phase
        self._machines: dict[Any, Machine] = {}
        self._wanted: frozenset[str] = frozenset()
        self._updates = bool(self._effects)
        self._results: dict[str, np.ndarray] = {}

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
        machine = self.machine([TensorType(a.dtype.name, a.shape) for a in arrays])
        features = {t.name: array for t, array in zip(self._fed, arrays)}
        features[self._global_step] = np.asarray(global_step, np.int64)
        features[RANDOM_STEP] = np.asarray(global_step, np.int64)
        needed = {name: features[name] for name in machine.program.features}
        if machine.steps_run:
            self._results = machine.run(needed)
        else:  # kernels are compiled at their first call, or read from the cache on disk
            with self._phase("first step, compiling kernels not in the cache"):
                self._results = machine.run(needed)
        self.program = machine.program
        return int(self._results.get(GLOBAL_STEP_UPDATE, global_step))

    def result(self, name: str) -> np.ndarray:
        """A wanted value of the last step."""
        return self._results[name]

    def prepare(self) -> None:
        """Compiles before the first step where the shapes of all fed tensors are known."""
        types = self.static_types()
        if types is not None:
            self.machine(types)

    def static_types(self) -> Optional[list[TensorType]]:
        """Types of the fed tensors; None where a shape is known only with the data."""
        if not all(tensor.shape.is_fully_defined() for tensor in self._fed):
            return None
        return [tensor_type(tensor) for tensor in self._fed]

    def machine(self, types: Sequence[TensorType]) -> Machine:
        """The machine for features of these types and the values wanted now; compiled once."""
        for key, machine in self._machines.items():
            if key[:2] == (tuple(types), self._updates) and self._wanted <= key[2]:
                return machine
        return self._compile(types)

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
        try:
            return self._compiled(types, self._make_capture)
        except UnsupportedOpError as error:
            if self._make_fallback is None:
                raise
            refused = error
        # An op on the way to the loss has no gradient rule: TensorFlow's own backward graph has.
        try:
            return self._compiled(types, self._make_fallback)
        except UnsupportedOpError:
            raise refused from None  # names what concerns the model

    def _compiled(self, types: Sequence[TensorType], make_capture: MakeCapture) -> Program:
        with self._phase("capturing"):
            step = self.captured(types, make_capture)
            layers = cut_into_layers(step, self._options)
        with self._phase(f"compiling {layers} layers"):
            program = compile_layers(step, layers, self._options)
        self.graph = step.graph
        return program

    def _compile(self, types: Sequence[TensorType]) -> Machine:
        program = self.compiled(types)
        self._check(program)
        machine = Machine(program, self.memoryx, arena=self._arena(program.arena_bytes))
        key = (tuple(types), self._updates, frozenset(program.results))
        self._machines[key] = machine
        if len(self._machines) > MOST_VARIANTS:
            del self._machines[next(iter(self._machines))]
        return machine

    def _arena(self, size: int) -> np.ndarray:
        """Activation memory that all variants share; grown, and given to all anew, when needed."""
        held = max((m.arena for m in self._machines.values()), key=len, default=None)
        if held is not None and len(held) >= size:
            return held
        arena = Machine.allocate(size)
        for machine in self._machines.values():
            machine.bind(arena)
        return arena


def _is_small(type: TensorType) -> bool:
    return type.is_static and type.bytes <= _SMALL_BYTES


def _global_step_to_host(step: StepGraph, name: str) -> None:
    """The global step lives in the session: fed to the step, and returned by it."""
    if name in step.variables:
        step.features[name] = step.variables.pop(name)
    if name in step.updates:
        step.results[GLOBAL_STEP_UPDATE] = step.updates.pop(name)
    step.set_outputs()


def _check_shape(tensor: Any, type: TensorType) -> None:
    """Raises DataError where fed content does not fit the tensor's static shape."""
    if not tensor.shape.is_compatible_with(type.shape):
        raise DataError(
            f"feature {tensor.name}: shape must fit {tensor.shape}. Received: {list(type.shape)}. "
            "Correct the input function."
        )
