"""Function bodies, v1 branches, checks and stateful operations of TensorFlow graphs."""

from __future__ import annotations

import functools
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.capture.order import all_before
from cerebras_tf.tf_compat.internals import op_def_registry

# Operation type -> attributes that name the functions it runs.
FUNCTION_ATTRIBUTES = {
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
}
LOOPS = ("While", "StatelessWhile")
# Types of operations that make or write a list of tensors.
LISTS = (
    "TensorListFromTensor",
    "TensorListReserve",
    "TensorListScatterIntoExistingList",
    "TensorListSetItem",
)
# Those whose first operand chooses one of their functions.
BRANCHING = ("Case", "If", "StatelessCase", "StatelessIf")
# Checks and prints: a step does not depend on them; the session still runs them.
CHECKS = ("Assert", "PrintV2")
# These, and prints that return their operand: the step computes it, the session prints.
_EFFECTS = (*CHECKS, "Print")
# Prefixes of the types of operations that assign variables.
ASSIGNING = (
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "RngReadAndSkip",
    "RngSkip",
)


def function_bodies(op: Any) -> list[Any]:
    """FuncGraphs an operation runs, in the order of its attributes; [] for ordinary operations."""
    names = FUNCTION_ATTRIBUTES.get(op.type, ())
    given = [op.get_attr(name) for name in names]
    flat = [one for item in given for one in (item if isinstance(item, list) else [item])]
    return [_body(op, function.name) for function in flat]


def operands(op: Any) -> list[Any]:
    """Inputs that an operation's result depends on.

    A print returns its first input. The lists that TensorFlow's backward graph has given a loop are
    for this graph alone.
    """
    if op.type in LOOPS:
        return [tensor for tensor in op.inputs if tensor.op.type != "EmptyTensorList"]
    return list(op.inputs[:1] if op.type == "Print" else op.inputs)


def parameters(op: Any, body: Any) -> list[tuple[Any, Any]]:
    """(input of the body, tensor that the operation passes for it) for a body it runs."""
    given = op.inputs[1:] if op.type in BRANCHING else op.inputs
    return list(zip(body.inputs, given))


def branches_around(op: Any) -> list[tuple[Any, int]]:
    """(predicate, side) of the v1 branches around an operation, innermost first; 0 is false."""
    # Private API of TensorFlow, as is the class of these contexts.
    context = op._get_control_flow_context()
    found = []
    while context is not None:
        predicate = getattr(context, "pred", None)
        if predicate is not None:
            found.append((predicate, context.branch))
        context = context.outer_context
    return found


def branch_of(op: Any) -> Optional[tuple[Any, int]]:
    """(predicate, side) of the v1 branch in which the session computes an operation, or None.

    The Switch that opens a branch is outside of it, but gives no value on the side not taken.
    """
    opening = op
    while opening.type == "Identity":
        (tensor,) = opening.inputs
        if tensor.op.type == "Switch":
            return tensor.op.inputs[1], tensor.value_index
        opening = tensor.op
    return next(iter(branches_around(op)), None)


def data_outputs(op_or_body: Any) -> list[Any]:
    """Outputs that hold data or lists of it.

    Other variants are for TensorFlow's backward graph; loops also return handles of variables.
    """
    return [t for t in op_or_body.outputs if _is_data(t)]


def _is_data(tensor: Any) -> bool:
    if tensor.dtype == tf.resource:
        return tensor.op.type not in (*LOOPS, "Placeholder")
    return tensor.dtype != tf.variant or is_list(tensor)


def is_list(tensor: Any) -> bool:
    """Whether a variant is a list that the model reads or writes."""
    op = tensor.op
    if op.type in LOOPS:
        _, body = function_bodies(op)
        return is_list(body.outputs[tensor.value_index])
    if op.type in BRANCHING:
        return all(is_list(body.outputs[tensor.value_index]) for body in function_bodies(op))
    if op.type == "Identity":
        return is_list(op.inputs[0])
    return op.type in (*LISTS, "Placeholder")  # a function passes it on


def body_operations(body: Any) -> list[Any]:
    """Operations that a body's data outputs and effects need, without its inputs and checks."""
    return [op for op in all_before(_roots(body), excluded=is_check) if op.type != "Placeholder"]


def _roots(body: Any) -> list[Any]:
    return [tensor.op for tensor in data_outputs(body)] + list(body.control_outputs)


def holds_checks(op: Any) -> bool:
    """Whether a conditional or function asserts or prints inside; a v1 one by its Merge."""
    if op.type == "Merge":
        return any(inner.type in _EFFECTS for inner in _branch_operations(op))
    return op.type in _EFFECTS or any(
        inner.type in _EFFECTS or holds_checks(inner)
        for body in function_bodies(op)
        for inner in all_before(_roots(body))
    )


def assigns(op: Any) -> bool:
    """Whether an operation assigns variables among its inputs, itself or in a function it calls."""
    if not any(tensor.dtype == tf.resource for tensor in op.inputs):
        return False
    return op.type.startswith(ASSIGNING) or any(
        assigns(inner) for body in function_bodies(op) for inner in body_operations(body)
    )


def is_stateful(op: Any) -> bool:
    """Whether an operation may return something else when it runs again, like an iterator."""
    return bool(op.outputs) and _has_stateful_type(op.type) and "Var" not in op.type


def draws(op: Any) -> bool:
    """Whether an operation draws random numbers."""
    if op.type in FUNCTION_ATTRIBUTES:
        return any(draws(inner) for body in function_bodies(op) for inner in body_operations(body))
    if not (op.outputs and _has_stateful_type(op.type)):
        return False
    return all(tensor.dtype != tf.resource for tensor in [*op.inputs, *op.outputs])


@functools.cache
def _has_stateful_type(op_type: str) -> bool:
    definition = op_def_registry.get(op_type)
    return definition is not None and bool(definition.is_stateful)


def is_check(op: Any) -> bool:
    """Whether an operation does nothing but assert or print.

    This includes conditionals around checks whose results are not read (the guards of
    tf.debugging), and identities before and after these.
    """
    if op.type in CHECKS:
        return True
    if any(tensor.dtype == tf.resource for tensor in op.inputs):
        return False
    readers = [reader for tensor in op.outputs for reader in tensor.consumers()]
    if op.type == "Identity" and readers and all(reader.type == "Merge" for reader in readers):
        return all(map(is_check, readers))
    if op.type == "Identity":
        return not readers and is_check(op.inputs[0].op)
    unread = all(r.type == "Identity" and not r.outputs[0].consumers() for r in readers)
    return unread and holds_checks(op)


def _branch_operations(merge: Any) -> list[Any]:
    """Operations inside the branches of a v1 conditional that its Merge depends on."""
    outside = merge._get_control_flow_context()
    roots = [tensor.op for tensor in merge.inputs]
    return all_before(roots, excluded=lambda op: not _is_within(op, outside))


def _is_within(op: Any, outside: Any) -> bool:
    """Whether an operation is in a branch, at any depth, of a control flow context."""
    context = op._get_control_flow_context()
    if context is outside:
        return False
    while context is not None:
        context = context.outer_context
        if context is outside:
            return True
    return False


def _body(op: Any, name: str) -> Any:
    # Private API of TensorFlow: there is no public way from a function's name to its graph.
    return op.graph._get_function(name).graph
