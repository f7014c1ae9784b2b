"""Functions with gradients of their own: tf.custom_gradient and tf.recompute_grad.

In a graph such a function ends in an IdentityN whose gradient is overridden. The override is called
once with placeholders for the cotangents, while the graph may still grow, and what it builds is
lowered as the `backward` graph of a `custom_gradient` node. TensorFlow's own use of the override is
deliberately left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import tensorflow as tf

# Private API of TF 2.15: the registry of gradient functions, where overrides are kept by name.
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework.func_graph import FuncGraph

from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.recording import GradientRecorder
from cerebras_tf.capture.registry import GraphLowering, lowers
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, StepGraph, Value


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
) -> dict[Operation, CustomGradient]:
    """Calls the override of every custom gradient that something differentiated depends on.

    Others are never differentiated: some have no gradient, or one whose gradient has a gradient of
    its own, and so on without end.

    Args:
        graph: the model's graph, still open.
        recorder: holds the gradient calls, and gets those made inside overrides.
    """
    found: dict[Operation, CustomGradient] = {}
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
            found.update((op, _call(op)) for op in fresh)


def overridden(op: Operation) -> bool:
    """Whether an operation is the IdentityN of a custom gradient."""
    if op.type != "IdentityN":
        return False
    return bool(op.node_def.attr["_gradient_op_type"].s.startswith(b"CustomGradient"))


def _call(op: Operation) -> CustomGradient:
    with tf.name_scope("captured_gradient/"), tf.control_dependencies(None):
        cotangents = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in op.outputs]
        results = tf_ops.get_gradient_function(op)(op, *cotangents)
    flat = [
        None if item is None else tf.convert_to_tensor(item)
        for item in (results if isinstance(results, (list, tuple)) else [results])
    ]
    return CustomGradient(cotangents, flat)


def _refuse_inside_function(c: GraphLowering, op: Operation) -> None:
    """Without its override a custom gradient would be differentiated as an identity."""
    if c.differentiates and overridden(op) and isinstance(op.graph, FuncGraph):
        raise UnsupportedOpError(
            "a function with a gradient of its own must not be inside tf.cond or tf.function. "
            "Received one there. Call it outside of them."
        )


@lowers("IdentityN")
def _identity_n(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Identity, or a function with a gradient of its own."""
    xs = [c.value(tensor) for tensor in op.inputs]
    custom = c.custom_gradients.get(op)
    if custom is None:
        _refuse_inside_function(c, op)
        return [c.b.op("identity", x) for x in xs]
    step = StepGraph(Graph(op.name.rpartition("/")[2] + "_gradient"))
    backward = c.nested(step)
    cotangents = [step.graph.add_input(t.name, c.tf_type(t)) for t in custom.cotangents]
    for tensor, value in zip(custom.cotangents, cotangents):
        backward.bind(tensor, value)
    results = [tensor for tensor in custom.results if tensor is not None]
    backward.lower_all([tensor.op for tensor in results])
    step.graph.outputs = [backward.value(tensor) for tensor in results]
    captured = [value for value in step.graph.inputs if value not in cotangents]
    step.graph.inputs = captured + cotangents
    gives = tuple(i for i, tensor in enumerate(custom.results) if tensor is not None)
    operands = [*xs, *(backward.outer_value(value) for value in captured)]
    outputs: list[Value] = c.b.multi(
        "custom_gradient", *operands, xs=len(xs), backward=step.graph, gives=gives
    )
    return outputs
