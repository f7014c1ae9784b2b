"""Bodies of TensorFlow functions: what conditionals and calls run.

This file deliberately lowers nothing itself.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Operation type -> attributes that name the functions it runs.
FUNCTION_ATTRIBUTES = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
}
# Checks and prints order nothing that a step computes; the session still runs them.
CHECKS = ("Assert", "PrintV2")


def function_bodies(op: Any) -> list[Any]:
    """FuncGraphs an operation runs, in the order of its attributes; [] for ordinary operations."""
    names = FUNCTION_ATTRIBUTES.get(op.type, ())
    return [_body(op, op.get_attr(name).name) for name in names]


def data_outputs(op_or_body: Any) -> list[Any]:
    """Outputs that hold data; variants keep intermediates for TensorFlow's own backward graph."""
    return [tensor for tensor in op_or_body.outputs if tensor.dtype != tf.variant]


def body_operations(body: Any) -> list[Any]:
    """Operations that a body's data outputs and effects need, inputs of the body left out."""
    stack = [tensor.op for tensor in data_outputs(body)] + list(body.control_outputs)
    found: dict[Any, None] = {}
    while stack:
        op = stack.pop()
        if op not in found:
            found[op] = None
            stack.extend(tensor.op for tensor in op.inputs)
            stack.extend(op.control_inputs)
    return [op for op in found if op.type != "Placeholder"]


def holds_checks(op: Any) -> bool:
    """Whether a conditional or function asserts or prints in its bodies."""
    return any(
        inner.type in CHECKS for body in function_bodies(op) for inner in body_operations(body)
    )


def is_check(op: Any) -> bool:
    """Whether an operation does no more than assert or print.

    Such are the operations themselves, conditionals around them whose results nobody reads (the
    guards of tf.debugging), and what passes on such results.
    """
    if op.type in CHECKS:
        return True
    if any(tensor.dtype == tf.resource for tensor in op.inputs):
        return False
    readers = [reader for tensor in op.outputs for reader in tensor.consumers()]
    if op.type == "Identity":
        return not readers and is_check(op.inputs[0].op)
    unread = all(r.type == "Identity" and not r.outputs[0].consumers() for r in readers)
    return unread and holds_checks(op)


def _body(op: Any, name: str) -> Any:
    # Private API of TF 2.15: there is no public way from a function's name to its graph.
    return op.graph._get_function(name).graph
