"""Decides what runs on the wafer and what stays in the TensorFlow session.

On the wafer: operations that depend on the model's variables and have an IR form, and operations on
features that these need. In the session: the input pipeline, metrics, summaries, prints, files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.complex_numbers import complex_inputs
from cerebras_tf.capture.custom_gradients import has_gradient
from cerebras_tf.capture.frames import frame_of, outermost, outside_makers
from cerebras_tf.capture.functions import (
    ASSIGNING,
    FUNCTION_ATTRIBUTES,
    assigns,
    body_operations,
    branches_around,
    draws,
    function_bodies,
    holds_checks,
    is_check,
    is_stateful,
)
from cerebras_tf.capture.lowerable import Lowerable, missing_op_report, result_tensors, user_line
from cerebras_tf.capture.order import all_before, execution_order
from cerebras_tf.capture.recording import GradientCall
from cerebras_tf.capture.state import resolve_handle
from cerebras_tf.errors import UnsupportedOpError

# Operations whose results have as many rows as their operands' content says.
_OF_UNKNOWN_SIZE = (
    "DynamicPartition",
    "ListDiff",
    "SegmentMax",
    "SegmentMean",
    "SegmentMin",
    "SegmentProd",
    "SegmentSum",
    "SparseSegmentMean",
    "SparseSegmentSqrtN",
    "SparseSegmentSum",
    "Unique",
    "UniqueV2",
    "UniqueWithCounts",
    "Where",
)
# Operation type -> positions of the operands that hold sizes of the result.
_SIZE_OPERANDS = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "ScatterNd": (2,),
    "Slice": (1, 2),
    "SparseSegmentMeanWithNumSegments": (3,),
    "SparseSegmentSqrtNWithNumSegments": (3,),
    "SparseSegmentSumWithNumSegments": (3,),
    "Tile": (1,),
    "UnsortedSegmentMax": (2,),
    "UnsortedSegmentMin": (2,),
    "UnsortedSegmentProd": (2,),
    "UnsortedSegmentSum": (2,),
}
# Operation type -> position of the sorted ids, the last of which counts the rows of the result.
_SEGMENTS = {
    "SegmentMax": 1,
    "SegmentMean": 1,
    "SegmentMin": 1,
    "SegmentProd": 1,
    "SegmentSum": 1,
    "SparseSegmentMean": 2,
    "SparseSegmentSqrtN": 2,
    "SparseSegmentSum": 2,
}
_SHAPES = ("Rank", "Shape", "ShapeN", "Size")
_MAX_SIZES = 8  # of a tensor that holds sizes
# On features they run in the session, also where sizes depend on data. They have no gradient.
_ON_WAFER_IF_NEEDED = ("Bitcast", "LowerBound", "RandomShuffle", "UpperBound")


class Placement:
    """Where the operations of one graph run.

    Operations that need no weights, but have an unknown size or no IR form, are computed in the
    session before the step, with what is computed from them: the step must know its sizes. Sizes
    that only their content says reach the step as the lengths of further tensors.

    Attributes:
        between: operations without an IR form that the session runs between two parts of a step,
            with the number of the part before each.
        sizes: for tensors that hold sizes, and for ids of segments, the numbers and the tensors of
            these lengths.
        owned: operations that make handles of variables the wafer reads or assigns.
        after_step: checks, prints and other effects that read what a step computes.
        with_checks: conditionals and calls that a step computes and that check or print inside.
    """

    def __init__(
        self,
        graph: tf.Graph,
        model_start: int,
        owned: Iterable[Any],
        global_step: Any,
        gradients: Sequence[GradientCall],
        whole: bool = True,
    ) -> None:
        """Prepares a placement.

        Args:
            model_start: number of operations that existed before the call.
            owned: operations that make handles of the variables a step reads or assigns.
            global_step: the one of the global step, whose variable stays in the session.
            gradients: recorded gradient calls.
            whole: whether one wafer computes a batch at once, so that the row numbers of sparse
                gradients are those in its features.
        """
        self.graph = graph
        self.between: dict[Any, int] = {}
        self._calls = list(gradients)
        self.sizes: dict[tuple[Any, int], list[Any]] = {}
        self._whole = whole
        self.owned = set(owned)
        self._global_step = global_step
        self._lowerable = Lowerable(self.owned, gradients)
        # Operations that depend on the global step or on random numbers. Each is computed in one
        # place only; this is the session if a fed tensor depends on it.
        self._varying: set[Any] = {global_step}
        self._inputs = set(graph.get_operations()[:model_start])
        self._results = {tensor.op for call in gradients for tensor in result_tensors(call)}
        self._inner_gradients = {
            op: call for call in gradients if call.outer_tensors for op in call.made
        }
        self._backward = {op for call in gradients for op in call.made} - self._results
        self.after_step: list[Any] = []
        self.with_checks: list[Any] = []
        self._in_step: set[Any] = set()
        self._varying_fed: set[Any] = set()
        self._original_edges: dict[Any, list[Any]] = {}
        self._seen = 0
        self._depends: set[Any] = set()
        self._host: set[Any] = set()
        self._of_batch: set[Any] = set()
        self._before_step: set[Any] = set()
        # Operations on features that a gradient by these features goes through.
        self._differentiated = {
            x.op for call in gradients for x in call.xs if x.dtype != tf.resource
        }
        self._row_numbers = {
            result.indices.op
            for call in gradients
            for result in call.results
            if isinstance(result, tf.IndexedSlices)
        }

    def update(self) -> None:
        """Places the operations added since the last call."""
        operations = self.graph.get_operations()
        fresh = {op: i for i, op in enumerate(operations[self._seen :])}
        self._seen = len(operations)
        # Inputs first: v1 conditionals add a Switch after the operation that reads it.
        ordered = execution_order(
            fresh, lambda op: [maker for maker in _makers(op) if maker in fresh], fresh
        )
        for op in dict.fromkeys([*ordered, *fresh]):  # loops have no order
            self._classify(op)

    def on_wafer(self, op: Any) -> bool:
        """Whether an operation's outputs are computed on the wafer."""
        return op in self._depends and op not in self._host

    def host_readers(self) -> list[tuple[Any, int, Any]]:
        """(operation, index of the input, tensor) of all reads of wafer values by the session."""
        found = []
        for op in self.graph.get_operations():
            if self.on_wafer(op) or op in self._backward or op in self.owned:
                continue
            for index, tensor in enumerate(op.inputs):
                if tensor.dtype in (tf.resource, tf.variant):  # handles and intermediates
                    continue
                if self.on_wafer(tensor.op):
                    found.append((op, index, tensor))
        return found

    def is_computed(self, op: Any) -> bool:
        """Whether every step runs the operation."""
        return op in self._in_step

    def depends_on_variables_only(self, op: Any) -> bool:
        """Whether an operation of the wafer depends on variables, not on a batch or random numbers.

        The variables must be read whole and without control inputs.
        """
        before = all_before([op], self.control_inputs)
        if not self.on_wafer(op) or any(map(draws, before)):
            return False
        reads = [o for o in before if self.owned.intersection(t.op for t in o.inputs)]
        plain = all(o.type == "ReadVariableOp" and not o.control_inputs for o in reads)
        return plain and self._inputs.intersection(before) <= {self._global_step}

    def can_become_input(self, tensor: Any) -> bool:
        """Whether a tensor depends on constants and the global step only, and is no gradient."""
        before = all_before([tensor.op], self.control_inputs)
        return (
            tensor.shape.is_fully_defined()
            and tensor.op not in self._results | self._backward
            and not (any(map(draws, before)) or self.reads_batch(before))
            and self.owned.intersection(before) <= {self._global_step}
        )

    def assignments(self, fetches: Iterable[Any]) -> list[Any]:
        """Operations that assign variables of the wafer when the session fetches these."""
        found = all_before(fetches, self.control_inputs)
        return [op for op in found if op.type.startswith(ASSIGNING) and self.is_replaced(op)]

    def session_assignments(self, fetches: Iterable[Any]) -> list[Any]:
        """Operations that assign variables of the session when it fetches these operations."""
        found = all_before(fetches, self.control_inputs)
        return [op for op in found if op.type.startswith(ASSIGNING) and not self.on_wafer(op)]

    def separate_assignments(self) -> set[Any]:
        """Operations that run an assignment of the wafer's variables that no step computes."""
        operations = self.graph.get_operations()
        own = [op for op in operations if self.on_wafer(op) and op not in self._in_step]
        return self._with_followers(op for op in own if assigns(op))

    def reads_batch(self, operations: Iterable[Any]) -> bool:
        """Whether one of the operations reads a batch from the input."""
        return any(op in self._inputs and is_stateful(op) for op in operations)

    def has_form(self, op: Any) -> bool:
        """Whether an operation has an IR form."""
        return self._lowerable.has(op)

    def is_backward(self, op: Any) -> bool:
        """Whether TensorFlow built the operation for a recorded gradient."""
        return op in self._backward

    def is_replaced(self, op: Any) -> bool:
        """Whether a step runs the operation instead of the session.

        Initializers of variables are on the wafer, but no step runs them.
        """
        if op in self.owned or not self.on_wafer(op):
            return False
        values = [t.op for t in op.inputs if t.dtype != tf.resource]
        initializes = op.type == "AssignVariableOp" and not any(map(self.on_wafer, values))
        return self.is_computed(op) or not initializes

    def needing_step(self, step: Sequence[Any] = ()) -> set[Any]:
        """Operations that run on the wafer, or in the session only after a step.

        Args:
            step: operations of the session that run a step.
        """
        operations = [op for op in self.graph.get_operations() if op not in self._backward]
        return self._with_followers([*step, *(op for op in operations if self.is_replaced(op))])

    def _with_followers(self, operations: Iterable[Any]) -> set[Any]:
        """Operations and those that read or wait for them, without TensorFlow's backward graph."""
        followers: dict[Any, list[Any]] = {}
        for op in self.graph.get_operations():
            if op in self._backward:
                continue
            for other in [*(t.op for t in op.inputs if t.dtype != tf.resource), *op.control_inputs]:
                followers.setdefault(other, []).append(op)
        found: set[Any] = set()
        stack = list(operations)
        while stack:
            op = stack.pop()
            if op not in found:
                found.add(op)
                stack.extend(followers.get(op, ()))
        return found

    def control_inputs(self, op: Any) -> list[Any]:
        """Control inputs of an operation as model_fn gave them."""
        return self._original_edges.get(op) or list(op.control_inputs)

    def replace_control_inputs(self, op: Any, others: list[Any]) -> None:
        """Changes the control inputs of an operation in the session; captures ignore the change."""
        self._original_edges.setdefault(op, list(op.control_inputs))
        # Private API of TensorFlow: there is no public way to change control inputs.
        op._remove_all_control_inputs()
        op._add_control_inputs(others)

    def boundary(self, capture: Any, roots: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """What the session feeds to a step.

        Args:
            capture: returns the dependencies of operations.

        Returns:
            (tensors fed, host operations that must run with the step and do not need it).

        Raises:
            UnsupportedOpError: the roots need wafer values through operations without an IR form.
        """
        roots = list(roots)
        needs = self._needs(capture, roots)
        if needs.formless and self._whole:
            self._find_between(list(needs.formless), roots)
        while True:
            needs = self._needs(capture, roots)
            varying = self._varying.intersection(_ancestors(needs.fed)) - self.owned
            if varying <= self._varying_fed:
                break
            self._varying_fed |= varying
        if needs.missing:
            position = {op: i for i, op in enumerate(self.graph.get_operations())}
            missing = sorted(dict.fromkeys(needs.missing), key=lambda op: position.get(op, -1))
            raise UnsupportedOpError(missing_op_report(missing))
        if self._inner_gradients:
            for op in needs.computed:
                self._refuse_inner_gradients(op, op)
        self._in_step.update(needs.computed)
        self._host.difference_update(needs.computed)
        # The session reads what the step computes of these; it does not compute it again.
        self._depends.update(op for op in self._in_step & self._varying if op not in self.owned)
        needing_step = self.needing_step()
        self.after_step = [
            op for op in needs.checks if op in needing_step and not self.is_replaced(op)
        ]
        kinds = (*FUNCTION_ATTRIBUTES, "Print")
        own = [op for op in needs.computed if op.type in kinds and self.on_wafer(op)]
        self.with_checks = [op for op in own if holds_checks(op)]
        independent = [*needs.independent, *(op for op in needs.checks if op not in needing_step)]
        used = {(t.op, t.value_index) for op in needs.computed for t in op.inputs}
        fed = [t for op in needs.fed for t in op.outputs if (op, t.value_index) in used]
        self._find_sizes(needs.computed)
        lengths = [t for parts in self.sizes.values() for t in parts if isinstance(t, tf.Tensor)]
        return [*fed, *lengths], independent

    def _find_between(self, formless: list[Any], roots: list[Any]) -> None:
        """Finds what the session can run between two parts of a step.

        These are operations without an IR form, and those that lie between two of them and read
        nothing else of the wafer. None of them may read a variable, or lie in a branch, or on the
        way of a gradient.
        """
        crossed = {op for call in self._calls for op in _crossed(call)}

        def may_move(op: Any) -> bool:
            kinds = {tensor.dtype for tensor in [*op.inputs, *op.outputs]}
            in_branch = op._get_control_flow_context() is not None
            return not (in_branch or op in crossed or kinds & {tf.resource, tf.variant})

        if not all(may_move(op) and op not in roots for op in formless):
            return
        before, after = _ancestors(formless), self._with_followers(formless)
        position = {op: i for i, op in enumerate(self.graph.get_operations())}
        order = execution_order(
            before, lambda op: [o for o in _makers(op) if o in before], position
        )
        if not set(formless) <= set(order):  # what follows a loop of version 1 has no order
            return
        parts: dict[Any, int] = {}
        for op in order:
            makers = [maker for maker in _makers(op) if maker in self._depends]
            only = all(maker in self.between for maker in makers)
            moved = op in formless or (op in after and only and may_move(op))
            steps = [parts[maker] + (maker in self.between and not moved) for maker in makers]
            parts[op] = max(steps, default=0)
            if moved:
                self.between[op] = parts[op]

    def _find_sizes(self, computed: Iterable[Any]) -> None:
        """Finds the sizes that a step needs and only the content of features says."""
        for op in computed if self._whole else ():
            for index in _SIZE_OPERANDS.get(op.type, ()):
                self._add_sizes(op.inputs[index])
            if op.type in _SEGMENTS:
                ids = op.inputs[_SEGMENTS[op.type]]
                if ids.op not in self._depends and self._reads_content(ids.op):
                    self._add_lengths(ids, [None], _segments)

    def _add_sizes(self, tensor: Any) -> None:
        """Finds the sizes in an operand, which the step may compute from several tensors."""
        op, shape = tensor.op, tensor.shape
        if tensor.dtype not in (tf.int32, tf.int64) or not shape.is_fully_defined():
            return
        if shape.rank > 1 or shape.num_elements() > _MAX_SIZES:
            return
        if op in self._depends:
            for other in op.inputs if op.type not in _SHAPES else ():
                self._add_sizes(other)
        elif self._reads_content(op):
            known = tf.get_static_value(tensor, partial=True)
            known = [None] * shape.num_elements() if known is None else list(np.ravel(known))
            self._add_lengths(tensor, known, lambda vector: vector)

    def _add_lengths(self, tensor: Any, known: Sequence[Any], sizes: Callable[[Any], Any]) -> None:
        """Adds tensors of given lengths to the session's graph, once for each tensor.

        Args:
            known: the sizes, or None for those that the session computes.
            sizes: returns a tensor of the sizes for the tensor.
        """
        key = tensor.op, tensor.value_index
        if key not in self.sizes:
            with tf.name_scope("wafer/size/"), tf.control_dependencies(None):
                found = tf.reshape(sizes(tensor), [-1])
                self.sizes[key] = [
                    tf.zeros([found[i]], tf.bool) if size is None else int(size)
                    for i, size in enumerate(known)
                ]

    def _reads_content(self, op: Any) -> bool:
        """Whether an operation on features needs more of them than their shapes."""
        found: set[Any] = set()
        stack = [op]
        while stack:
            op = stack.pop()
            if op in self._before_step or (op in self._inputs and op.type != "Const"):
                return True
            if op not in found and op.type not in _SHAPES:
                found.add(op)
                stack.extend(_makers(op))
        return False

    def check_fetches(self, fetches: Iterable[Any]) -> None:
        """Checks that the session can compute operations: none reads a variable of the wafer.

        Raises:
            UnsupportedOpError: names the operations without an IR form that would.
        """
        missing: list[Any] = []
        seen: set[Any] = set()
        stack = list(fetches)
        while stack:
            op = stack.pop()
            if op in seen or self.on_wafer(op):
                continue
            seen.add(op)
            handles = [resolve_handle(t).op for t in op.inputs if t.dtype == tf.resource]
            if op in self._host and self.owned.intersection(handles) - {self._global_step}:
                missing.extend(self._unsupported(op))
            stack.extend([*(tensor.op for tensor in op.inputs), *op.control_inputs])
        if missing:
            raise UnsupportedOpError(missing_op_report(list(dict.fromkeys(missing))))

    def _refuse_inner_gradients(self, op: Any, outer: Any) -> None:
        """Refuses function bodies that differentiate tensors or variables of an enclosing graph."""
        for body in function_bodies(op):
            for inner in body_operations(body):
                self._refuse_inner_gradients(inner, outer)
                if inner in self._inner_gradients:
                    names = dict.fromkeys(
                        t.op.name for t in self._inner_gradients[inner].outer_tensors
                    )
                    line = user_line(outer)
                    raise UnsupportedOpError(
                        f"op '{outer.name}' ({outer.type}{f', built at {line}' if line else ''}): "
                        "a branch or function must not compute gradients of outer tensors. "
                        f"Received: gradients that need {', '.join(names)}. Call compute_gradients "
                        "before it and apply_gradients inside."
                    )

    def _unsupported(self, op: Any) -> list[Any]:
        """Operations without an IR form that keep an operation in the session."""
        found = self._lowerable.missing(op)
        return found or [
            other
            for maker in _makers(op)
            if maker in self._host
            for other in self._unsupported(maker)
        ]

    def _needs(self, capture: Any, roots: list[Any]) -> _Needs:
        needs = _Needs()
        seen: set[Any] = set()
        stack = list(roots)
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            seen.add(op)
            if is_check(op):
                needs.checks[op] = None
                continue
            if op not in self._depends and holds_checks(op):
                needs.checks[op] = None
            if op in self.between:
                stack.extend(tensor.op for tensor in op.inputs if tensor.op in self._depends)
                continue
            missing = self._lowerable.missing(op)
            if missing and op not in self._depends:
                needs.independent.append(op)
                continue
            needs.missing.extend(missing)
            if missing:
                needs.formless[op] = None
                stack.extend(tensor.op for tensor in op.inputs if tensor.op in self._depends)
                continue
            needs.computed[op] = None
            for other in capture.dependencies(op):
                if self.is_in_session(other):
                    needs.fed[other] = None
                if other in self.between or other not in needs.fed:
                    stack.append(other)
            for other in self.control_inputs(op):
                if is_check(other) or not self._lowerable.has(other):
                    needs.checks[other] = None
        return needs

    def is_in_session(self, op: Any) -> bool:
        """Whether the session computes the operation and feeds its outputs to a step."""
        if op in self.between:
            return True
        if op in self._depends or op in self.owned or op.type == "Const" or not op.outputs:
            return False
        if op in self._inputs or op in self._varying_fed or op in self._before_step:
            return True
        if op not in self._differentiated and not self._lowerable.has(op):
            return True
        if op.type in _ON_WAFER_IF_NEEDED:
            return True
        return any(map(self.is_in_session, complex_inputs(op)))  # it gives no complex numbers

    def _classify(self, op: Any) -> None:
        if op in self.owned:
            if op is not self._global_step:
                self._depends.add(op)
            return
        if op in self._inputs:  # the session reads the global step itself
            return
        if op.type == "VarIsInitializedOp":  # the same before, in and after every step
            return
        makers = _makers(op)
        loop = outermost(op)
        drawn = draws(op) if loop is None else any(map(draws, frame_of(loop).operations))
        if drawn or any(maker in self._varying for maker in makers):
            self._varying.add(op)
        if any(maker in self._differentiated for maker in makers) and has_gradient(op):
            self._differentiated.add(op)
        if any(maker in self._of_batch or self._is_batch(maker) for maker in makers):
            self._of_batch.add(op)
        kept = op in self._results and not (self._whole and op in self._row_numbers)
        if kept or any(maker in self._depends for maker in makers):
            self._depends.add(op)
            if op in self._results:
                return
            unsupported = is_check(op) or not self._lowerable.has(op)
            if unsupported or any(maker in self._host for maker in makers):
                self._host.add(op)
        elif self._whole and self._is_before_step(op, makers):
            self._before_step.add(op)

    def _is_batch(self, op: Any) -> bool:
        """Whether an operation of the input gives more than a constant."""
        return op in self._inputs and op.type != "Const" and op is not self._global_step

    def _is_before_step(self, op: Any, makers: Sequence[Any]) -> bool:
        """Whether an operation that needs no weights must be computed in the session."""
        if op not in self._of_batch or op in self._varying or op in self._differentiated:
            return False
        if op in self._results or not op.outputs or op._get_control_flow_context() is not None:
            return False
        return (
            op.type in _OF_UNKNOWN_SIZE
            or any(maker in self._before_step for maker in makers)
            or any(self._reads_content(op.inputs[i].op) for i in _SIZE_OPERANDS.get(op.type, ()))
            or not self._lowerable.has(op)
        )


@dataclass
class _Needs:
    """What a step needs of a graph; operations in the order they were found.

    Attributes:
        fed: operations of the session whose outputs are fed.
        independent: operations of the session that the step waits for but does not read.
        checks: assertions, prints and other effects.
        missing: operations on the wafer without an IR form.
        formless: these, or the calls that have them inside.
    """

    fed: dict[Any, None] = field(default_factory=dict)
    independent: list[Any] = field(default_factory=list)
    checks: dict[Any, None] = field(default_factory=dict)
    missing: list[Any] = field(default_factory=list)
    formless: dict[Any, None] = field(default_factory=dict)
    computed: dict[Any, None] = field(default_factory=dict)


def _crossed(call: GradientCall) -> set[Any]:
    """Operations that a gradient goes through."""
    stops = {tensor.op for tensor in call.stops}
    back: set[Any] = set()
    stack = [tensor.op for tensor in call.ys]
    while stack:
        op = stack.pop()
        if op not in back and op not in stops:
            back.add(op)
            if has_gradient(op):
                stack.extend(tensor.op for tensor in op.inputs)
    crossed: set[Any] = set()
    tensors = list(call.xs)
    while tensors:
        for op in tensors.pop().consumers():
            if op in back and op not in crossed and has_gradient(op):
                crossed.add(op)
                tensors.extend(op.outputs)
    return crossed


def _segments(ids: Any) -> Any:
    """The number of segments with these sorted ids: a scalar."""
    none = tf.constant([-1], ids.dtype)
    return tf.reduce_max(tf.concat([none, tf.reshape(ids, [-1])], 0)) + 1


def _makers(op: Any) -> list[Any]:
    """Operations whose values this one needs."""
    loop = outermost(op)
    if loop is not None:  # a loop of version 1 runs in one place
        return outside_makers(loop)
    found = [tensor.op for tensor in op.inputs]
    if op.type == "Merge":  # its predicate is not an input
        found += [predicate.op for maker in found for predicate, _ in branches_around(maker)]
    return found


def _ancestors(operations: Iterable[Any]) -> set[Any]:
    """Operations whose values these need, and these."""
    found: set[Any] = set()
    stack = list(operations)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack.extend(_makers(op))
    return found
