"""Lowerings of conditionals and function calls.

A v2 tf.cond becomes `cond`. Of a v1 tf.cond (Switch and Merge) both sides run and `select` chooses.
Loops are in loops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import tensorflow as tf

from cerebras_tf.capture.functions import (
    BRANCHING,
    branches_around,
    data_outputs,
    function_bodies,
    is_check,
)
from cerebras_tf.capture.lists import PendingList
from cerebras_tf.capture.operations import FunctionBody, Operation, Tensor
from cerebras_tf.capture.registry import GraphLowering, Lowering, lowers
from cerebras_tf.capture.state import VariableState
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, StepGraph, Value
from cerebras_tf.ops import Builder
from cerebras_tf.ops.control import inline


@lowers("PartitionedCall", "StatefulPartitionedCall")
def _call(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Inlines the body."""
    (body,) = function_bodies(op)
    return lower_body(c, op, body, op.inputs, c.b, c.state)


def lower_body(
    c: GraphLowering,
    op: Operation,
    body: FunctionBody,
    arguments: Sequence[Union[Tensor, Value]],
    b: Builder,
    state: VariableState,
) -> list[Value]:
    """Lowers a function body into a builder.

    Args:
        arguments: values of the body's inputs, or tensors that have them, in order.
        b: receives the nodes.

    Returns:
        Values of the body's outputs.
    """
    inner = c.child(b, state)
    # The assignments of a branch are guarded where its results are assigned.
    inner.condition = guard(c, op) if b is c.b else None
    inner.path = f"{c.path}{op.name}/"
    inner.lowerable = c.lowerable.inside(op, body)
    for parameter, argument in zip(body.inputs, arguments):
        if isinstance(argument, Value):
            inner.bind(parameter, argument)
        elif parameter.dtype == tf.resource:
            state.bind_handle(parameter, c.state.variable(argument))
        else:
            inner.bind(parameter, c.value(argument))
    outputs = data_outputs(body)
    effects = [effect for effect in body.control_outputs if not is_check(effect)]
    inner.lower_all([tensor.op for tensor in outputs] + effects)
    return [inner.value(tensor) for tensor in outputs]


@lowers(*BRANCHING)
def _if(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """cond(predicate, operands, variables): the branches' outputs, then assigned variables."""
    chosen = c.value(op.inputs[0])
    operands = [
        t
        for t in op.inputs[1:]
        if t.dtype != tf.resource and not isinstance(c.value(t), PendingList)
    ]
    branches = [_branch(c, op, body, operands) for body in function_bodies(op)]
    _fill_lists(branches)
    names = list(dict.fromkeys(n for step, _ in branches for n in step.variables))
    assigned = list(dict.fromkeys(n for step, _ in branches for n in step.updates))
    uses_random = any(step.features for step, _ in branches)
    handles = {c.state.variable(t).name: t for t in op.inputs if t.dtype == tf.resource}
    graphs = [
        _finish(step, outputs, branches, names, assigned, uses_random) for step, outputs in branches
    ]
    given = [c.value(t) for t in operands] + [
        c.state.read_detached(c.b, handles[name]) for name in names
    ]
    if uses_random:
        given.append(c.random_step())
    if "Case" in op.type:
        results = _case(c.b, chosen, given, graphs)
    else:
        if chosen.dtype != "bool":
            chosen = c.b.op("not_equal", chosen, 0)
        results = c.b.multi("cond", chosen, *given, then=graphs[0], orelse=graphs[1])
    count = len(data_outputs(op))
    for name, value in zip(assigned, results[count:]):
        assign(c, op, handles[name], value)
    return results[:count]


def _case(b: Builder, index: Value, given: list[Value], graphs: list[Graph]) -> list[Value]:
    """Outputs of graph number `index`, of the last one if there is none: conditionals in others."""
    first, *others = graphs
    if not others:
        return inline(b, first, given)
    orelse = Graph(f"{first.name}_else")
    number, *inputs = [
        orelse.add_input(f"x{i}", value.type) for i, value in enumerate([index, *given])
    ]
    inner = Builder(orelse, b.evaluate)
    orelse.outputs = _case(inner, inner.op("sub", number, 1), inputs, others)
    first.inputs = [first.add_input("index", index.type), *first.inputs[:-1]]
    chosen = b.op("equal", index, 0)
    return list(b.multi("cond", chosen, index, *given, then=first, orelse=orelse))


def _branch(
    c: GraphLowering, op: Operation, body: FunctionBody, operands: list[Tensor]
) -> tuple[StepGraph, list[Value]]:
    step = StepGraph(Graph(op.name.rpartition("/")[2] + ("_else" if _is_else(op, body) else "")))
    b = Builder(step.graph, c.b.evaluate)
    arguments: list[Union[Tensor, Value]] = []
    for tensor in op.inputs[1:]:
        value = None if tensor.dtype == tf.resource else c.value(tensor)
        if value is not None and not isinstance(value, PendingList):
            value = step.graph.add_input(tensor.name, value.type)
        arguments.append(tensor if value is None else value)
    state = VariableState(step, in_branch=True)
    outputs = lower_body(c, op, body, arguments, b, state)
    step.updates = state.updates()
    return step, outputs


def _fill_lists(branches: list[tuple[StepGraph, list[Value]]]) -> None:
    """Gives lists that only some branches have written the type that they have there."""
    for at, values in enumerate(zip(*(outputs for _, outputs in branches))):
        written = [value for value in values if not isinstance(value, PendingList)]
        for (step, outputs), value in zip(branches, values):
            if written and isinstance(value, PendingList):
                outputs[at] = value.filled(Builder(step.graph), written[0].shape[1:])


def _is_else(op: Operation, body: FunctionBody) -> bool:
    """Whether a body is the second branch of a conditional."""
    return function_bodies(op)[-1] is body


def _finish(
    step: StepGraph,
    outputs: list[Value],
    branches: list[tuple[StepGraph, list[Value]]],
    names: list[str],
    assigned: list[str],
    uses_random: bool,
) -> Graph:
    """Gives both branches the same inputs (operands, variables, step) and the same outputs."""
    graph = step.graph
    named = set(step.variables.values()) | set(step.features.values())
    inputs = [value for value in graph.inputs if value not in named]
    specs = {name: spec for other, _ in branches for name, spec in other.specs.items()}
    for name in names:
        if name not in step.variables:
            step.variables[name] = graph.add_input(name, specs[name].type)
        inputs.append(step.variables[name])
    if uses_random:
        feature = next(iter(step.features.values()), None)
        if feature is None:
            given = next(f for other, _ in branches for f in other.features.values())
            feature = graph.add_input(given.name, given.type)
        inputs.append(feature)
    graph.inputs = inputs
    graph.outputs = outputs + [step.updates.get(n, step.variables[n]) for n in assigned]
    return graph


@lowers("Switch", "RefSwitch")
def _switch(c: Lowering, op: Operation) -> Sequence[Value]:
    """v1 conditional: both sides receive the data."""
    value = c.value(op.inputs[0])
    return [value, value]


@lowers("Merge")
def _merge(c: Lowering, op: Operation) -> Sequence[Value]:
    """v1 conditional: selects the side the predicate chose."""
    predicate = None
    for tensor in op.inputs:
        predicate = _predicate(tensor.op)
        if predicate is not None:
            break
    if predicate is None:
        raise UnsupportedOpError(
            "inputs must be the two sides of a tf.cond. Received: "
            f"{', '.join(tensor.name for tensor in op.inputs)}. Use tf.cond."
        )
    chosen = c.value(predicate)
    orelse, then = (c.value(tensor) for tensor in op.inputs)
    index = c.b.op("cast", chosen, dtype="int32")
    if then.type == orelse.type and then is orelse:
        return [then, index]
    return [c.b.op("select", chosen, then, orelse), index]


def _predicate(op: Operation) -> Optional[Tensor]:
    if op.type == "Switch":
        return op.inputs[1]
    around = branches_around(op)
    return around[0][0] if around else None


def guard(c: Lowering, op: Operation) -> Optional[Value]:
    """Condition under which v1 conditionals run an operation; None outside of them.

    It includes those around the calls of the function that contains the operation.
    """
    condition = c.condition
    for predicate, branch in branches_around(op):
        side = c.value(predicate)
        if branch == 0:
            side = c.b.op("logical_not", side)
        condition = side if condition is None else c.b.op("logical_and", condition, side)
    return condition


def assign(c: Lowering, op: Operation, handle: Tensor, value: Value) -> None:
    """Assigns a variable, under the operation's guard if it has one."""
    condition = guard(c, op)
    if condition is not None:
        value = c.b.op("select", condition, value, c.state.read(handle))
    c.state.assign(handle, value)
