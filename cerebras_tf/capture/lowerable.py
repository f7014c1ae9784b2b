"""Says which TensorFlow operations have an IR form.

Placement and capture both ask here: what one of them puts on the wafer, the other can lower.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from cerebras_tf.capture.functions import body_operations, function_bodies, parameters
from cerebras_tf.capture.operations import FunctionBody, Operation, Tensor
from cerebras_tf.capture.recording import GradientCall
from cerebras_tf.capture.registry import LOWERINGS
from cerebras_tf.capture.state import passed_handle

_WITHOUT_FORM = frozenset((tf.string, tf.complex64, tf.complex128))


class Lowerable:
    """What can be lowered of a graph or of one function body.

    Args:
        handles: operations that make handles of the variables a step reads or assigns.
        gradients: recorded gradient calls; their results are lowered as gradients, whatever
            operations TensorFlow made for them.
    """

    def __init__(
        self, handles: Iterable[Operation], gradients: Iterable[GradientCall] = ()
    ) -> None:
        self._handles = set(handles)
        self._results = {tensor.op for call in gradients for tensor in result_tensors(call)}
        self._missing: dict[Operation, list[Operation]] = {}

    def has(self, op: Operation) -> bool:
        """Whether the operation, and all it runs, has an IR form."""
        return not self.missing(op)

    def missing(self, op: Operation) -> list[Operation]:
        """The operation, or those inside the functions it calls, that have no IR form.

        Checks and prints have none; inside functions they are passed over. Nor has anything that
        makes or reads text, or reads what TensorFlow's backward graph keeps of a branch.
        """
        if op not in self._missing:
            self._missing[op] = self._find_missing(op)
        return self._missing[op]

    def _find_missing(self, op: Operation) -> list[Operation]:
        if op in self._handles or op in self._results:
            return []
        if any(tensor.dtype.base_dtype in _WITHOUT_FORM for tensor in [*op.inputs, *op.outputs]):
            return [op]
        if any(tensor.dtype == tf.variant for tensor in op.inputs):
            return [op]
        if op.type not in LOWERINGS or not all(map(self._is_known, op.inputs)):
            return [op]
        return [
            found
            for body in function_bodies(op)
            for within in [self.inside(op, body)]
            for inner in body_operations(body)
            for found in within.missing(inner)
        ]

    def inside(self, op: Operation, body: FunctionBody) -> Lowerable:
        """What can be lowered in a function body that the operation runs."""
        pairs = parameters(op, body)
        return Lowerable(
            inner.op
            for inner, outer in pairs
            if outer.dtype == tf.resource and self._is_known(outer)
        )

    def _is_known(self, tensor: Tensor) -> bool:
        """Whether a tensor is data, or the handle of a variable of the step."""
        return tensor.dtype != tf.resource or passed_handle(tensor).op in self._handles


def result_tensors(call: GradientCall) -> list[Tensor]:
    """The tensors that hold a gradient call's results."""
    found = []
    for result in call.results:
        if isinstance(result, tf.IndexedSlices):
            found += [result.values, result.indices]
        elif result is not None:
            found.append(result)
    return found
