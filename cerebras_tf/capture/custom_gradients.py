"""Gradients that a model overrides: tf.custom_gradient, tf.recompute_grad, gradient_override_map.

The override of an operation is called once with placeholders for the cotangents, before the graph
is finalized. The operations it builds become the `backward` graph of a `custom_gradient` node:

    y = tanh(x)  ->  y, _ = custom_gradient(stop_gradient(tanh(x)), x)

The node replaces an IdentityN, which tf.custom_gradient puts at the end of its functions. An
override that reads tensors from outside of its function body, or one that is differentiated twice,
is refused; TensorFlow's own backward graph, which has used the override, is captured instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import tensorflow as tf

from cerebras_tf.capture.cross_wafer import is_cross_wafer_sum
from cerebras_tf.capture.functions import FUNCTION_ATTRIBUTES, body_operations, function_bodies
from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.capture.registry import GraphLowering, lowers
from cerebras_tf.errors import GradientError
from cerebras_tf.ir import Graph, StepGraph, Value
from cerebras_tf.tf_compat.internals import tf_ops

# Modules whose gradient functions the rules of ops/ replace.
_FRAMEWORKS = ("tensorflow.", "tensorflow_estimator.", "keras.", "tf_keras.")


@dataclass(frozen=True)
class CustomGradient:
    """What the override of one operation builds.

    Attributes:
        cotangents: placeholders for the cotangents of the operation's outputs.
        results: cotangents of its inputs; None if there is none.
    """

    cotangents: list[Tensor]
    results: list[Optional[Tensor]]


def prepare_custom_gradients(
    graph: tf.Graph, recorder: GradientRecorder
) -> dict[Operation, Optional[CustomGradient]]:
    """Calls the override of every operation that a differentiated tensor depends on.

    Others are not called: an override may itself build overridden operations, without end.

    Args:
        graph: the model's graph, not finalized.
        recorder: holds the gradient calls; calls made inside overrides are added.

    Returns:
        Results of the overrides. None for an operation that must not be lowered because its
        override would be differentiated too, and may read the operation's outputs.
    """
    found: dict[Operation, Optional[CustomGradient]] = {}
    seen: set[Operation] = set()
    with graph.as_default(), recorder:
        while True:
            stack = [tensor.op for call in recorder.calls for tensor in call.ys]
            fresh = []
            while stack:
                op = stack.pop()
                if op not in seen:
                    seen.add(op)
                    stack.extend(tensor.op for tensor in op.inputs)
                    inside = [i for body in function_bodies(op) for i in body_operations(body)]
                    stack.extend(inside)
                    if has_override(op):
                        fresh.append(op)
            if not fresh:
                return found
            twice = any(op in seen for call in recorder.calls for op in call.made)
            for op in fresh:
                refused = twice and op.type != "IdentityN"
                made = None if refused else _call(op)
                if refused or made is not None:
                    found[op] = made


def has_override(op: Operation) -> bool:
    """Whether an operation has a gradient other than TensorFlow's own for its type.

    This holds for the IdentityN of a custom gradient, for operations built under
    `gradient_override_map`, and for types whose gradient the user registered. Overrides by
    TensorFlow (of calls) and by this package (of sums over wafers) do not count.
    """
    if op.type in FUNCTION_ATTRIBUTES or not op.inputs or is_cross_wafer_sum(op):
        return False
    try:
        op.get_attr("_gradient_op_type")
    except ValueError:
        return _is_registered_by_user(op.type)
    return True


def has_gradient(op: Operation) -> bool:
    """Whether TensorFlow differentiates an operation."""
    if not op.inputs or op.type == "Const":
        return False
    try:
        return tf_ops.get_gradient_function(op) is not None
    except LookupError:
        return False


def _is_registered_by_user(op_type: str) -> bool:
    try:
        function = tf_ops.gradient_registry.lookup(op_type)
    except LookupError:
        return False
    return function is not None and not function.__module__.startswith(_FRAMEWORKS)


def _call(op: Operation) -> Optional[CustomGradient]:
    """What an override builds; None if it captures tensors from outside of the op's function."""
    inputs = len(getattr(op.graph, "inputs", ()))
    with op.graph.as_default(), tf.name_scope("captured_gradient/"), tf.control_dependencies(None):
        cotangents = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in op.outputs]
        function = tf_ops.get_gradient_function(op)
        results = [None] * len(op.inputs) if function is None else function(op, *cotangents)
    flat = [
        None if item is None else tf.convert_to_tensor(item)
        for item in (results if isinstance(results, (list, tuple)) else [results])
    ]
    if len(getattr(op.graph, "inputs", ())) != inputs:
        return None
    return CustomGradient(cotangents, flat)


@lowers("IdentityN")
def _identity_n(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Identity, or the end of a function with a custom gradient."""
    xs = [c.value(tensor) for tensor in op.inputs]
    custom = c.custom_gradients.get(op)
    if custom is None:
        return [c.b.op("identity", x) for x in xs]
    return _with_gradient(c, op, custom, xs, 0)


def apply_override(c: GraphLowering, op: Operation) -> None:
    """Gives the outputs of a lowered operation the gradient that overrides its own.

    Raises:
        GradientError: the override cannot be lowered.
    """
    if not c.differentiates:
        return
    if c.path and op not in c.custom_gradients and has_override(op):
        raise GradientError(
            "a custom gradient inside tf.cond or tf.function must not read tensors from outside of "
            f"it. Received: {op.name!r}. Pass them as arguments, or call it outside."
        )
    if op not in c.custom_gradients or op.type == "IdentityN":
        return
    custom = c.custom_gradients[op]
    if custom is None:
        raise GradientError(
            "an overridden gradient must be differentiated once. Received: a gradient of that "
            "gradient. Use tf.custom_gradient."
        )
    if any(tensor.dtype == tf.resource for tensor in op.inputs):
        raise GradientError(
            "an op with an overridden gradient must not read a variable itself. Received: "
            f"{op.type}. Override the gradient of an op after it."
        )
    results = [c.b.op("stop_gradient", c.value(tensor)) for tensor in op.outputs]
    outputs = _with_gradient(c, op, custom, [*results, *c.inputs(op)], len(results))
    for tensor, value in zip(op.outputs, outputs):
        c.bind(tensor, value)


def _with_gradient(
    c: GraphLowering, op: Operation, custom: CustomGradient, xs: list[Value], first: int
) -> list[Value]:
    """Returns the xs; the custom gradient gives the cotangents from x number `first` on."""
    step = StepGraph(Graph(op.name.rpartition("/")[2] + "_gradient"))
    backward = c.nested(step)
    cotangents = [step.graph.add_input(t.name, c.tf_type(t)) for t in custom.cotangents]
    for tensor, value in zip(custom.cotangents, cotangents):
        backward.bind(tensor, value)
    if first:  # cotangents of the operation's inputs, which no one reads after the node
        cotangents += [step.graph.add_input(f"d_{i}", x.type) for i, x in enumerate(xs[first:])]
    results = [tensor for tensor in custom.results if tensor is not None]
    backward.lower_all([tensor.op for tensor in results])
    step.graph.outputs = [backward.value(tensor) for tensor in results]
    captured = [value for value in step.graph.inputs if value not in cotangents]
    step.graph.inputs = captured + cotangents
    gives = tuple(first + i for i, tensor in enumerate(custom.results) if tensor is not None)
    operands = [*xs, *(backward.outer_value(value) for value in captured)]
    outputs: list[Value] = c.b.multi(
        "custom_gradient", *operands, xs=len(xs), backward=step.graph, gives=gives
    )
    return outputs
