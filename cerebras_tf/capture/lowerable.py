"""Finds which TensorFlow operations have an IR form, and reports those that have none.

Placement and capture both use it, so that capture can lower what placement puts on the wafer.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence

import tensorflow as tf

from cerebras_tf.capture.complex_numbers import COMPLEX_LOWERINGS, complex_inputs, is_complex
from cerebras_tf.capture.frames import frame_of, outermost
from cerebras_tf.capture.functions import (
    BRANCHING,
    LOOPS,
    body_operations,
    function_bodies,
    is_list,
    operands,
    parameters,
)
from cerebras_tf.capture.operations import FunctionBody, Operation, Tensor
from cerebras_tf.capture.recording import GradientCall
from cerebras_tf.capture.registry import LOWERINGS
from cerebras_tf.capture.state import resolve_handle
from cerebras_tf.capture.substitutes import advice

_LIST_TAKERS = (*BRANCHING, *LOOPS, "Identity")


class Lowerable:
    """Finds what can be lowered of a graph or of one function body.

    Args:
        handles: operations that make handles of the variables a step reads or assigns.
        gradients: recorded gradient calls; their results are lowered as gradients of the IR.
    """

    def __init__(
        self, handles: Iterable[Operation], gradients: Iterable[GradientCall] = ()
    ) -> None:
        self._handles = set(handles)
        self._results = {tensor.op for call in gradients for tensor in result_tensors(call)}
        self._missing: dict[Operation, list[Operation]] = {}
        self._of_loops: dict[object, list[Operation]] = {}

    def has(self, op: Operation) -> bool:
        """Whether the operation, with the functions it calls, has an IR form."""
        return not self.missing(op)

    def missing(self, op: Operation) -> list[Operation]:
        """Operations without an IR form: the operation, or those in the functions it calls.

        Checks and prints have none; inside functions they are skipped. Operations on text, and on
        the intermediates of branches that TensorFlow's backward graph reads, have none either.
        """
        if op not in self._missing:
            self._missing[op] = self._find_missing(op)
        return self._missing[op]

    def _find_missing(self, op: Operation) -> list[Operation]:
        if op in self._handles or op in self._results:
            return []
        loop = outermost(op)
        if loop is None:
            return self._missing_alone(op)
        if loop not in self._of_loops:
            inner = frame_of(loop).operations
            self._of_loops[loop] = [found for item in inner for found in self._missing_alone(item)]
        return self._of_loops[loop]

    def _missing_alone(self, op: Operation) -> list[Operation]:
        if op in self._handles:
            return []
        if any(tensor.dtype.base_dtype == tf.string for tensor in [*operands(op), *op.outputs]):
            return [op]
        takes_lists = op.type in _LIST_TAKERS or op.type.startswith("TensorList")
        variants = [tensor for tensor in op.inputs if tensor.dtype == tf.variant]
        if variants and not (takes_lists and all(map(_may_be_list, variants))):
            return [op]
        rules: Container[str] = COMPLEX_LOWERINGS if is_complex(op) else LOWERINGS
        if op.type not in rules or not all(map(self._is_known, op.inputs)):
            return [op]
        if any(self.missing(maker) for maker in complex_inputs(op)):
            return [op]  # the session can give numbers, but not complex ones
        return [
            found
            for body in function_bodies(op)
            for nested in [self.inside(op, body)]
            for inner in body_operations(body)
            for found in nested.missing(inner)
        ]

    def inside(self, op: Operation, body: FunctionBody) -> Lowerable:
        """The Lowerable of a function body that the operation runs."""
        pairs = parameters(op, body)
        return Lowerable(
            inner.op
            for inner, outer in pairs
            if outer.dtype == tf.resource and self._is_known(outer)
        )

    def _is_known(self, tensor: Tensor) -> bool:
        """Whether a tensor is data, or the handle of a variable of the step."""
        handle = resolve_handle(tensor).op if tensor.dtype == tf.resource else None
        return handle is None or handle in self._handles or handle.type == "TensorArrayV3"


def _may_be_list(tensor: Tensor) -> bool:
    """Whether a variant is not an intermediate of branches."""
    return tensor.op.type not in BRANCHING or is_list(tensor)


def result_tensors(call: GradientCall) -> list[Tensor]:
    """Tensors of a gradient call's results."""
    found = []
    for result in call.results:
        if isinstance(result, tf.IndexedSlices):
            found += [result.values, result.indices]
        elif result is not None:
            found.append(result)
    return found


_FRAMEWORKS = (
    f"{os.sep}tensorflow{os.sep}",
    f"{os.sep}tensorflow_estimator{os.sep}",
    f"{os.sep}keras{os.sep}",
    f"{os.sep}tf_keras{os.sep}",
    f"{os.sep}cerebras_tf{os.sep}",
)
# Parts of a v1 loop, and v2 loops; both are reported as While.
_LOOPS = ("While", "StatelessWhile", "Enter", "Exit", "LoopCond", "NextIteration")


def user_line(op: Operation) -> str:
    """ "file.py:41" of the innermost frame outside of the frameworks; "" if there is none."""
    try:
        frames = list(op.traceback)
    except AttributeError:  # operations of function bodies keep no traceback
        return ""
    for frame in reversed(frames):
        if not any(part in frame.filename for part in _FRAMEWORKS):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""


def missing_op_report(ops: Sequence[Operation]) -> str:
    """Error message for operations without an IR form: types, counts, names, source lines."""
    parts = listed(ops)
    kinds = "type has" if len(parts) == 1 else "types have"
    types = [part.partition(" ")[0] for part in parts]
    return f"{len(parts)} TensorFlow op {kinds} no IR form: {', '.join(parts)}. {advice(types)}"


def listed(ops: Sequence[Operation]) -> list[str]:
    """Types of operations, the most frequent first, with counts, names and source lines."""
    by_type: dict[str, list[Operation]] = {}
    loops: set[str] = set()
    for op in ops:
        if op.type in _LOOPS:
            # The operations of a version 1 loop share its name scope.
            loop = op.name if "While" in op.type else op.name.rpartition("/")[0]
            if loop not in loops:
                by_type.setdefault("While", []).append(op)
            loops.add(loop)
        else:
            by_type.setdefault(op.type, []).append(op)
    parts = []
    for op_type, found in sorted(by_type.items(), key=lambda item: (-len(item[1]), item[0])):
        line = user_line(found[0])
        where = f", built at {line}" if line else ""
        parts.append(f"{op_type} ({len(found)}x, '{found[0].name}'{where})")
    return parts
