"""TensorFlow graph -> IR: the capture of one step.

Visits the operations that the wanted tensors and the training op need, in order, and applies one
lowering rule to each. The rules are in the other files; this file handles features, variables,
recorded gradients and errors.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.complex_numbers import COMPLEX_LOWERINGS, ComplexRule, Pair, is_complex
from cerebras_tf.capture.custom_gradients import CustomGradient, apply_override
from cerebras_tf.capture.frames import EXITS, frame_of, innermost, loop_condition
from cerebras_tf.capture.functions import CHECKS, branches_around, data_outputs, is_check, operands
from cerebras_tf.capture.gradients import lower_call, mark_boundaries
from cerebras_tf.capture.lowerable import Lowerable, missing_op_report
from cerebras_tf.capture.order import all_before, execution_order
from cerebras_tf.capture.recording import GradientCall
from cerebras_tf.capture.registry import LOWERINGS, GraphLowering
from cerebras_tf.capture.state import VariableState
from cerebras_tf.capture.variables import tensor_type
from cerebras_tf.errors import CerebrasError, UnsupportedOpError
from cerebras_tf.ir import Array, Graph, Size, StepGraph, TensorType, Value, Variable, verify
from cerebras_tf.ir.program import COMMON_RANDOM_STEP, RANDOM_STEP
from cerebras_tf.ir.step import Draw
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import Builder, infer
from cerebras_tf.ops.sizes import counts
from cerebras_tf.tf_compat.internals import FuncGraph


class Capture(GraphLowering):
    """Lowers operations of one TensorFlow graph.

    Attributes: see Lowering and GraphLowering.
    """

    def __init__(
        self,
        handles: dict[Any, Variable],
        features: dict[Any, TensorType],
        gradients: Sequence[GradientCall] = (),
        custom_gradients: Optional[dict[Any, Optional[CustomGradient]]] = None,
        control_inputs: Callable[[Any], Iterable[Any]] = operator.attrgetter("control_inputs"),
        tf_gradients: Sequence[GradientCall] = (),
        stored: Optional[dict[str, Variable]] = None,
        sizes: Optional[Mapping[tuple[Any, int], Sequence[Any]]] = None,
    ) -> None:
        """Prepares a capture.

        Args:
            handles: variables the graph may use, by the op that makes their handle.
            features: tensors given at every step, with their concrete types.
            gradients: recorded gradient calls that become gradients of the IR.
            custom_gradients: prepared gradients of tf.custom_gradient functions, by their op.
            control_inputs: returns the control inputs of an operation as model_fn gave them.
            tf_gradients: recorded calls whose results TensorFlow's backward graph computes.
            stored: variables stored in bfloat16 that are float32 in the graph, by name.
            sizes: see Placement.
        """
        self._sizes = sizes or {}
        self._tf_gradients = tf_gradients
        self.custom_gradients = custom_gradients or {}
        self.path = ""
        self.condition: Optional[Value] = None
        self.gathers: list[tuple[str, Value, Value]] = []
        self.step = self._top = StepGraph(Graph("step"))
        self.b = Builder(self.step.graph, evaluate)
        self._stored = stored or {}
        self.state = VariableState(self.step, stored=self._stored)
        self._environment: dict[tuple[Any, int], Union[Value, Pair]] = {}
        self._part: Optional[int] = None
        self._given: Optional[list[Value]] = None
        self._outer: Optional[Capture] = None
        self._captured: dict[Value, Value] = {}
        self._features = {_key(tensor): (tensor, type) for tensor, type in features.items()}
        self._handles = handles
        self._control_inputs = control_inputs
        self._run_by_session: Optional[set[Any]] = None
        self.lowerable = Lowerable(handles, gradients)
        self._gradients: dict[tuple[Any, int], tuple[GradientCall, int, str]] = {}
        self._first_results: dict[int, Any] = {}  # by the identity of the call
        for call in gradients:
            for index, result in enumerate(call.results):
                if isinstance(result, tf.IndexedSlices):
                    self._gradients[_key(result.values)] = (call, index, "values")
                    self._gradients[_key(result.indices)] = (call, index, "indices")
                elif result is not None:
                    self._gradients[_key(result)] = (call, index, "dense")
        for op, variable in handles.items():
            self.state.bind_handle(op.outputs[0], variable)

    # Lowering and GraphLowering, which document these methods.

    def value(self, tensor: Any) -> Value:
        if _key(tensor) not in self._environment:
            if _key(tensor) in self._features:
                self._add_feature(tensor)
            elif self._outer is not None:
                self._capture_outer(tensor, self._outer.value(tensor))
        found = self._environment[_key(tensor)]
        if not isinstance(found, tuple):
            return found
        if self._part is None:
            raise UnsupportedOpError(
                "a complex tensor must not enter a branch, a function or a gradient. Received: "
                f"{tensor.op.name!r}. Pass tf.math.real and tf.math.imag of it."
            )
        return found[self._part]

    def pair(self, tensor: Any) -> Pair:
        real, imaginary = (self.part(which).value(tensor) for which in (0, 1))
        return real, imaginary

    def part(self, which: int) -> Capture:
        same = self._copy()
        same._part = which
        return same

    def given(self, values: list[Value]) -> Capture:
        same = self._copy()
        same._given = values
        return same

    def _copy(self) -> Capture:
        same = type(self).__new__(type(self))
        same.__dict__.update(self.__dict__)
        return same

    def inputs(self, op: Any) -> list[Value]:
        if self._given is not None:
            return self._given
        return [self.value(t) for t in op.inputs if t.dtype != tf.resource]

    def maybe_static(self, tensor: Any) -> Optional[Array]:
        value = self._environment.get(_key(tensor))
        if isinstance(value, tuple):
            return None if self._part is None else value[self._part].constant
        return None if value is None else value.constant

    def static(self, tensor: Any, what: str) -> Array:
        content = self.maybe_static(tensor)
        if content is None:
            raise UnsupportedOpError(
                f"op '{tensor.op.name}': {what} must be known before the first step. "
                "Received: a value that depends on data. Give it as a constant or a static shape."
            )
        return content

    def tf_type(self, tensor: Any) -> TensorType:
        if tensor.dtype.base_dtype.is_complex:
            parts = tensor.dtype.base_dtype.real_dtype.name
            return TensorType(parts, tuple(tensor.shape.as_list()))
        return tensor_type(tensor)

    def random_step(self, for_all: bool = False) -> Value:
        name = COMMON_RANDOM_STEP if for_all else RANDOM_STEP
        features = self.step.features
        if name not in features:
            features[name] = self.step.graph.add_input(name, TensorType("int64", ()))
        return features[name]

    def counted_seeds(self, name: str, draw: Draw) -> Optional[Value]:
        if self.step is not self._top:
            return None
        feature = f"{RANDOM_STEP}/{name}"
        if feature not in self.step.features:
            value = self.step.graph.add_input(feature, TensorType("int64", (3,)))
            self.step.features[feature] = value
        self.step.draws[feature] = draw
        return self.step.features[feature]

    @property
    def differentiates(self) -> bool:
        return bool(self._gradients)

    def bind(self, tensor: Any, value: Union[Value, Pair]) -> None:
        self._environment[_key(tensor)] = value

    # The capture itself.

    def run(self, wanted: dict[str, Any], effects: Iterable[Any] = ()) -> StepGraph:
        """Captures a step.

        Args:
            wanted: tensors whose values the step returns, by name.
            effects: operations whose assignments the step makes (the training op).

        Raises:
            UnsupportedOpError: operations have no IR form; the message lists all of them.
        """
        roots = [tensor.op for tensor in wanted.values()] + list(effects)
        self._run_by_session = set(all_before(roots, self._control_inputs))
        self.lower_all(roots)
        mark_boundaries(self, self._tf_gradients)
        self.step.updates = self._to_storage_dtypes(self.state.updates())
        self.step.results = {name: self.value(tensor) for name, tensor in wanted.items()}
        self.step.graph.prune()
        verify(self.step.graph, infer)
        return self.step

    def _to_storage_dtypes(self, updates: Mapping[str, Value]) -> dict[str, Value]:
        """New values of variables; those stored in bfloat16 are rounded stochastically.

        Rounding to nearest would stop a moving average whose share of new values is less than half
        a unit in the last place: 0.001, of a second moment, is less than 2^-9. The result of an
        element depends only on the variable's name, the step and the element's index.
        """
        return {
            name: self.b.op("round_randomly", value, self._rounding_key(name))
            if name in self._stored
            else value
            for name, value in updates.items()
        }

    def _rounding_key(self, name: str) -> Value:
        """int64 scalar for a variable, a different one at every step."""
        # The text is part of the seed: changing it would change trained weights.
        digest = hashlib.blake2b(f"{name} at rest".encode(), digest_size=16).digest()
        seeds = self.b.constant(np.frombuffer(digest, "<i8").astype(np.int64))
        step = self.random_step(for_all=True)
        limits = {"low": 0, "high": 2**63 - 1}
        return self.b.op("random_uniform_int", step, seeds, shape=(), dtype="int64", **limits)

    def lower_all(self, roots: Sequence[Any]) -> None:
        if not roots:
            return
        order = execution_order(roots, self.dependencies, self._positions(roots[0].graph))
        missing = [op for op in order for op in self.unsupported(op)]
        if missing:
            raise UnsupportedOpError(missing_op_report(missing))
        for op in order:
            self.lower(op)

    def _positions(self, graph: Any) -> dict[Any, int]:
        """Positions in the order of building, with unconditional reads of the global step first.

        TensorFlow's session runs these before the update of the global step, which waits for
        everything else, even if they were built after it.
        """
        position = {op: i for i, op in enumerate(graph.get_operations())}
        step = tf.compat.v1.train.get_global_step(graph)
        for op in step.handle.consumers() if hasattr(step, "handle") else ():
            if op.type == "ReadVariableOp" and op in position and not self._control_inputs(op):
                position[op] -= len(position)
        return position

    def unsupported(self, op: Any) -> list[Any]:
        """Like Lowerable.missing, without checks and operations that already have values."""
        if op.type in CHECKS or self._is_known(op):
            return []
        return self.lowerable.missing(op)

    def child(self, b: Builder, state: VariableState) -> Capture:
        inner = self._copy()
        inner.step, inner.b, inner.state = state.step, b, state
        inner._environment = {}
        inner._features = {}
        return inner

    def has(self, tensor: Any) -> bool:
        return (
            _key(tensor) in self._environment
            or _key(tensor) in self._features
            or (self._outer is not None and self._outer.has(tensor))
        )

    def nested(self, step: StepGraph) -> Capture:
        inner = self.child(Builder(step.graph, evaluate), VariableState(step, self.state))
        inner._outer = self
        inner.condition = None
        inner._captured = {}
        return inner

    def inside(self, step: StepGraph, b: Builder, state: VariableState) -> Capture:
        inner = self.child(b, state)
        inner._outer = self
        inner._captured = {}
        return inner

    @property
    def captured(self) -> dict[Value, Value]:
        return self._captured

    def outer_value(self, captured: Value) -> Value:
        if captured in self._captured:
            return self._captured[captured]
        assert self._outer is not None
        name = str(self.step.variable_of(captured))
        return self._outer.state.read_named_detached(self._outer.b, name)

    def _capture_outer(self, tensor: Any, outer: Value) -> None:
        if outer.constant is not None:
            captured = self.b.constant(outer.constant, outer.dtype)
        else:
            captured = self.step.graph.add_input(outer.name, outer.type)
            self._captured[captured] = outer
        self.bind(tensor, captured)

    def dependencies(self, op: Any) -> list[Any]:
        """Operations that must be captured before this one."""
        if self._is_known(op):
            return []
        call = self._recorded(op)
        if call is None and op.type == "LoopCond":
            return list(frame_of(innermost(op)).enters)
        if call is None and op.type in EXITS:
            return [loop_condition(innermost(op))]
        if call is not None:
            first = self._first_result(call)
            if op is not first:  # all results are lowered together
                return [first]
            needed = [*call.ys, *(dy for dy in call.dys if dy is not None), *call.xs]
            before = []
        else:
            needed = [*operands(op), *(predicate for predicate, _ in branches_around(op))]
            before = self._control_dependencies(op)
        return [t.op for t in needed if _key(t) not in self._features] + before

    def _control_dependencies(self, op: Any) -> list[Any]:
        """Operations that control edges put before an operation.

        The session runs operations without an IR form; the step runs what those wait for, such as
        assignments.
        """
        found: list[Any] = []
        seen: set[Any] = set()
        stack = list(self._control_inputs(op))
        while stack:
            other = stack.pop()
            if other in seen or is_check(other) or self._is_pruned(other):
                continue
            seen.add(other)
            if self._is_known(other) or self.lowerable.has(other):
                found.append(other)
            else:
                stack.extend(self._control_inputs(other))
                stack.extend(tensor.op for tensor in other.inputs)
        return found

    def _is_pruned(self, op: Any) -> bool:
        """Whether TensorFlow's session would not run an operation of the model's graph.

        A recorded gradient depends on the differentiated tensors, TensorFlow's backward graph may
        not. An assignment that only those tensors wait for must not be made.
        """
        run = self._run_by_session
        return run is not None and op not in run and not isinstance(op.graph, FuncGraph)

    def _is_known(self, op: Any) -> bool:
        """Whether all outputs of the operation have values."""
        return bool(op.outputs) and all(self.has(tensor) for tensor in data_outputs(op))

    def _is_handle(self, op: Any) -> bool:
        """Whether the operation makes the handle of a variable, or passes it into a function."""
        return op in self._handles or any(self.state.knows(tensor) for tensor in op.outputs)

    def lower(self, op: Any) -> None:
        """Applies the rule of one operation and binds its outputs."""
        self.b.source = op.name
        if self._is_known(op) or op.type in CHECKS or self._is_handle(op):
            return
        if self._recorded(op) is not None:
            self._lower_gradient(op)
            return
        try:
            rules: Mapping[str, ComplexRule] = COMPLEX_LOWERINGS if is_complex(op) else LOWERINGS
            for tensor, value in zip(data_outputs(op), rules[op.type](self, op)):
                self.bind(tensor, value)
            apply_override(self, op)
        except CerebrasError as error:
            raise type(error)(f"op '{op.name}' ({op.type}): {error}") from error

    def segments(self, ids: Any) -> Optional[Value]:
        if _key(ids) not in self._sizes:
            return None
        (size,) = self._lengths(ids)
        return counts(self.b, size, ids.dtype.name)

    def _lengths(self, tensor: Any) -> list[Size]:
        """The sizes that a tensor holds, or that its ids need."""
        found: list[Size] = []
        for part in self._sizes[_key(tensor)]:
            size = part if isinstance(part, int) else self.value(part).shape[0]
            assert size is not None  # features have bounded shapes
            found.append(size)
        return found

    def _add_feature(self, tensor: Any) -> None:
        if _key(tensor) in self._sizes and tensor.shape.is_fully_defined():
            sizes = self._lengths(tensor)
            dims = sizes if tensor.shape.rank else sizes[0]
            self.bind(tensor, counts(self.b, dims, tensor.dtype.name))
            return
        type = self._features[_key(tensor)][1]
        value = self.step.graph.add_input(tensor.name, type)
        self.step.features[tensor.name] = value
        self.bind(tensor, value)

    def _recorded(self, op: Any) -> Optional[GradientCall]:
        for tensor in op.outputs:
            if _key(tensor) in self._gradients:
                return self._gradients[_key(tensor)][0]
        return None

    def _first_result(self, call: GradientCall) -> Any:
        """The operation of a gradient call's results that was built first."""
        if id(call) not in self._first_results:
            made = [key[0] for key, entry in self._gradients.items() if entry[0] is call]
            place = {op: i for i, op in enumerate(made[0].graph.get_operations())}
            self._first_results[id(call)] = min(made, key=lambda op: place[op])
        return self._first_results[id(call)]

    def _lower_gradient(self, op: Any) -> None:
        for tensor in op.outputs:
            if _key(tensor) in self._gradients and _key(tensor) not in self._environment:
                call = self._gradients[_key(tensor)][0]
                for result, value in lower_call(self, call):
                    self.bind(result, value)


def _key(tensor: Any) -> tuple[Any, int]:
    return tensor.op, tensor.value_index
