"""Gradients that a model overrides: tf.custom_gradient, tf.recompute_grad, gradient_override_map.

The override of an operation is called once with placeholders for the cotangents, while the graph
may still grow, and what it builds is lowered as the `backward` graph of a `custom_gradient` node:

    y = tanh(x)  ->  y, _ = custom_gradient(stop_gradient(tanh(x)), x)

For an IdentityN, in which functions of tf.custom_gradient end, the node stands for the operation
itself. What this cannot say (an override inside a function body, or differentiated twice) is
refused, and then TensorFlow's own backward graph is captured, which has used the override.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import tensorflow as tf

# Private API of TF 2.15: the registry of gradient functions, where overrides are kept by name.
from tensorflow.python.framework import ops as tf_ops

from cerebras_tf.capture.cross_wafer import is_cross_wafer_sum
from cerebras_tf.capture.functions import FUNCTION_ATTRIBUTES
from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.capture.registry import GraphLowering, lowers
from cerebras_tf.errors import GradientError
from cerebras_tf.ir import Graph, StepGraph, Value

# Modules whose gradient functions our own rules stand for.
_FRAMEWORKS = ("tensorflow.", "tensorflow_estimator.", "keras.")


@dataclass(frozen=True)
class CustomGradient:
    """What the override of one operation builds.

    Attributes:
        cotangents: placeholders for the cotangents of the operation's outputs.
        results: cotangents of its inputs; None where there is none.
    """

    cotangents: list[Tensor]
    results: list[Optional[Tensor]]


def prepare_custom_gradients(
    graph: tf.Graph, recorder: GradientRecorder
) -> dict[Operation, Optional[CustomGradient]]:
    """Calls the override of every operation that something differentiated depends on.

    Others are never differentiated: some have no gradient, or one whose gradient has a gradient of
    its own, and so on without end.

    Args:
        graph: the model's graph, still open.
        recorder: holds the gradient calls, and gets those made inside overrides.

    Returns:
        What the overrides build; None for an operation that must not be lowered: its override would
        itself be differentiated, and may read what the operation gives.
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
                    if overridden(op):
                        fresh.append(op)
            if not fresh:
                return found
            twice = any(op in seen for call in recorder.calls for op in call.made)
            for op in fresh:
                refused = twice and op.type != "IdentityN"
                found[op] = None if refused else _call(op)


def overridden(op: Operation) -> bool:
    """Whether an operation has a gradient other than TensorFlow's own for its type.

    That is the IdentityN of a custom gradient, an operation built under `gradient_override_map`,
    and one of a type whose gradient a user registered. TensorFlow itself overrides those of calls,
    and of sums over wafers we do.
    """
    if op.type in FUNCTION_ATTRIBUTES or not op.inputs or is_cross_wafer_sum(op):
        return False
    try:
        op.get_attr("_gradient_op_type")
    except ValueError:
        return _is_registered_by_user(op.type)
    return True


def _is_registered_by_user(op_type: str) -> bool:
    try:
        function = tf_ops.gradient_registry.lookup(op_type)
    except LookupError:
        return False
    return function is not None and not function.__module__.startswith(_FRAMEWORKS)


def _call(op: Operation) -> CustomGradient:
    with tf.name_scope("captured_gradient/"), tf.control_dependencies(None):
        cotangents = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in op.outputs]
        function = tf_ops.get_gradient_function(op)
        results = [None] * len(op.inputs) if function is None else function(op, *cotangents)
    flat = [
        None if item is None else tf.convert_to_tensor(item)
        for item in (results if isinstance(results, (list, tuple)) else [results])
    ]
    return CustomGradient(cotangents, flat)


@lowers("IdentityN")
def _identity_n(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Identity, or a function with a gradient of its own."""
    xs = [c.value(tensor) for tensor in op.inputs]
    custom = c.custom_gradients.get(op)
    if custom is None:
        return [c.b.op("identity", x) for x in xs]
    return _with_gradient(c, op, custom, xs, 0)


def override(c: GraphLowering, op: Operation) -> None:
    """Gives the outputs of an operation, which is lowered, the gradient that overrides its own.

    Raises:
        GradientError: the override cannot be lowered.
    """
    if not c.differentiates:
        return
    if c.path:
        _refuse_inside_function(op)
        return
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
            "an overridden gradient must be of an op that reads no variable itself. Received: "
            f"{op.type}. Override the gradient of what follows it."
        )
    results = [c.b.op("stop_gradient", c.value(tensor)) for tensor in op.outputs]
    outputs = _with_gradient(c, op, custom, [*results, *c.inputs(op)], len(results))
    for tensor, value in zip(op.outputs, outputs):
        c.bind(tensor, value)


def _refuse_inside_function(op: Operation) -> None:
    """Without its override it would be differentiated by the rule of its type."""
    if overridden(op):
        raise GradientError(
            "a function with a gradient of its own must not be inside tf.cond or tf.function. "
            f"Received: {op.name!r}. Call it outside of them."
        )


def _with_gradient(
    c: GraphLowering, op: Operation, custom: CustomGradient, xs: list[Value], first: int
) -> list[Value]:
    """The xs, with cotangents by a custom gradient; its first is that of x number `first`."""
    step = StepGraph(Graph(op.name.rpartition("/")[2] + "_gradient"))
    backward = c.nested(step)
    cotangents = [step.graph.add_input(t.name, c.tf_type(t)) for t in custom.cotangents]
    for tensor, value in zip(custom.cotangents, cotangents):
        backward.bind(tensor, value)
    if first:  # of the operation's inputs, which nobody reads behind the node
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
