"""Lowerings of loops of both versions of control flow: condition and body as graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional, Union

import tensorflow as tf

from cerebras_tf.capture.control import assign, lower_body
from cerebras_tf.capture.frames import exits_of, frame_of, innermost, switch_of
from cerebras_tf.capture.functions import data_outputs, function_bodies
from cerebras_tf.capture.lists import PendingList
from cerebras_tf.capture.operations import FunctionBody, Operation, Tensor
from cerebras_tf.capture.registry import GraphLowering, lowers
from cerebras_tf.capture.state import VariableState
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, StepGraph, TensorType, Value, Variable
from cerebras_tf.ir.program import COMMON_RANDOM_STEP
from cerebras_tf.ops import Builder
from cerebras_tf.ops.counted_loops import Loop, emit_loop, written_rows

# The loop's types are found by lowering its body again with what it returned.
_ATTEMPTS = 4


@lowers("While", "StatelessWhile")
def _while(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """The last values of loop variables and assigned variables."""
    cond, body = function_bodies(op)
    outputs = {_position(body, tensor): None for tensor in data_outputs(body)}
    starts = [None if t.dtype == tf.resource or not c.has(t) else c.value(t) for t in op.inputs]
    same = [_forwarded(tensor) is given for tensor, given in zip(body.outputs, body.inputs)]
    handles = [t for t in op.inputs if t.dtype == tf.resource]

    def lower(part: FunctionBody, arguments: _Values, step: StepGraph, b: Builder) -> _Lowered:
        given: list[Union[Tensor, Value]] = []
        for tensor, value in zip(op.inputs, arguments):
            if value is None and tensor.dtype != tf.resource:  # of TensorFlow's backward graph
                value = PendingList("float32", 0, None, False)
            given.append(tensor if value is None else value)
        state = VariableState(step, in_branch=True)
        made = lower_body(c, op, part, given, b, state)
        if part is cond:
            return list(made), state, {}
        places = [_position(body, tensor) for tensor in data_outputs(body)]
        found: list[Optional[Value]] = [None] * len(op.inputs)
        for at, value in zip(places, made):
            found[at] = value
        return found, state, {}

    lowered = lower_loop(
        c,
        op,
        op.name.rpartition("/")[2],
        starts,
        [s or (at not in outputs) for at, s in enumerate(same)],
        lambda *given: lower(cond, *given),
        lambda *given: lower(body, *given),
        handles,
    )
    unread = PendingList("float32", 0, None, False)
    return [lowered[tensor.value_index] or unread for tensor in data_outputs(op)]


_Values = list[Optional[Value]]
# What a part returns, its variables, and the outer values of inputs that it has added.
_Lowered = tuple[_Values, VariableState, dict[Value, Value]]
_Lower = Callable[[_Values, StepGraph, Builder], _Lowered]


@dataclass
class _Part:
    """The condition or the body of a loop, lowered into a graph of its own.

    Attributes:
        inputs: its loop variables; None for what is no input.
        outputs: what it returns.
        captured: outer values of further inputs.
    """

    step: StepGraph
    inputs: _Values
    outputs: _Values
    captured: dict[Value, Value]

    def complete(
        self, variables: Sequence[Variable], draws: Sequence[str], outer: Sequence[Value]
    ) -> None:
        """Adds inputs for what only the other part reads."""
        step, graph = self.step, self.step.graph
        for spec in variables:
            if spec.name not in step.variables:
                step.variables[spec.name] = graph.add_input(spec.name, spec.type)
        for name in draws:
            if name not in step.features:
                step.features[name] = graph.add_input(name, TensorType("int64", ()))
        known = set(self.captured.values())
        for value in outer:
            if value not in known:
                self.captured[graph.add_input(value.name, value.type)] = value

    def arrange(
        self,
        moving: Sequence[int],
        assigned: Sequence[str],
        still: Sequence[int],
        read: Sequence[str],
        draws: Sequence[str],
        outer: Sequence[Value],
    ) -> None:
        """Puts the inputs in the order of Loop: what changes, what does not, draws."""
        step, inner = self.step, {value: given for given, value in self.captured.items()}
        order = [self.inputs[at] for at in moving] + [step.variables[n] for n in assigned]
        order += [self.inputs[at] for at in still] + [step.variables[n] for n in read]
        order += [inner[value] for value in outer] + [step.features[n] for n in draws]
        step.graph.inputs = [value for value in order if value is not None]


class _Measured(Exception):
    """How many rows a loop writes of every loop variable that is a list; None if unknown."""

    def __init__(self, rows: dict[int, Optional[int]]) -> None:
        super().__init__()
        self.of_carries = rows


def lower_loop(
    c: GraphLowering,
    op: Operation,
    name: str,
    starts: Sequence[Optional[Value]],
    same: Sequence[bool],
    lower_cond: _Lower,
    lower_body: _Lower,
    handles: Sequence[Tensor],
) -> list[Value]:
    """Emits a loop.

    Args:
        op: the loop, for its assignments.
        starts: the first value of every loop variable; None for variables' handles.
        same: whether a loop variable never changes.
        lower_cond: lowers the condition of loop variables into a builder.
        lower_body: lowers their next values; None for those that do not exist.
        handles: of all variables that the loop may read or assign.

    Returns:
        The last value of every loop variable; those of handles are undefined.
    """
    parts = (same, lower_cond, lower_body, handles)
    if any(isinstance(v, PendingList) and v.grows for v in starts):
        given = [v.grown(1) if isinstance(v, PendingList) else v for v in starts]
        try:
            _lower_loop(c, op, name, given, *parts, _measure)
        except _Measured as measured:
            rows = measured.of_carries
            starts = [
                v.grown(count) if isinstance(v, PendingList) and (count := rows.get(at)) else v
                for at, v in enumerate(starts)
            ]
    return _lower_loop(c, op, name, starts, *parts, lambda b, loop, _: emit_loop(b, loop))


def _lower_loop(
    c: GraphLowering,
    op: Operation,
    name: str,
    starts: Sequence[Optional[Value]],
    same: Sequence[bool],
    lower_cond: _Lower,
    lower_body: _Lower,
    handles: Sequence[Tensor],
    emit: Callable[[Builder, Loop, Sequence[int]], list[Value]],
) -> list[Value]:
    """As lower_loop; `emit` is given the positions of the carries among the loop variables."""
    types = [None if v is None or isinstance(v, PendingList) else v.type for v in starts]
    body = _lower_stable(c, name, starts, types, same, lower_body)
    test = _lower_part(c, name + "_cond", starts, types, same, lower_cond)
    if test.step.updates:
        raise UnsupportedOpError("the condition of a loop must not assign variables.")
    parts = (body, test)
    moving = [at for at, v in enumerate(body.inputs) if v is not None and not same[at]]
    still = [at for at, v in enumerate(body.inputs) if v is not None and same[at]]
    updates = body.step.updates
    names = list(dict.fromkeys(n for part in parts for n in part.step.variables))
    assigned = [n for n in names if n in updates]
    read = [n for n in names if n not in updates]
    draws = list(dict.fromkeys(n for part in parts for n in part.step.features))
    outer = list(dict.fromkeys(v for part in parts for v in part.captured.values()))
    specs = {n: spec for part in parts for n, spec in part.step.specs.items()}
    for part in parts:
        part.complete([specs[n] for n in names], draws, outer)
        part.arrange(moving, assigned, still, read, draws, outer)
    made = [body.outputs[at] for at in moving] + [updates[n] for n in assigned]
    body.step.graph.outputs = [value for value in made if value is not None]
    test.step.graph.outputs = [value for value in test.outputs if value is not None]
    by_name = {c.state.variable(t).name: t for t in handles}
    carries = [_start(c, starts[at], types[at]) for at in moving]
    carries += [c.state.read_detached(c.b, by_name[n]) for n in assigned]
    consts = [_start(c, starts[at], types[at]) for at in still]
    consts += [c.state.read_detached(c.b, by_name[n]) for n in read] + outer
    drawn = [c.random_step(for_all=n == COMMON_RANDOM_STEP) for n in draws]
    loop = Loop(test.step.graph, body.step.graph, carries, consts, drawn)
    found = emit(c.b, loop, [*moving, *(len(starts) for _ in assigned)])
    for n, value in zip(assigned, found[len(moving) :]):
        assign(c, op, by_name[n], value)
    last = dict(zip(moving, found))
    return [last.get(at, value) for at, value in enumerate(starts)]  # type: ignore[misc]


def _measure(b: Builder, loop: Loop, positions: Sequence[int]) -> list[Value]:
    raise _Measured(dict(zip(positions, written_rows(b, loop))))


def _lower_stable(
    c: GraphLowering,
    name: str,
    starts: Sequence[Optional[Value]],
    types: list[Optional[TensorType]],
    same: Sequence[bool],
    lower: _Lower,
) -> _Part:
    """The body, after `types` were changed to ones that it keeps."""
    for _ in range(_ATTEMPTS):
        body = _lower_part(c, name, starts, types, same, lower)
        before = list(types)
        for at, value in enumerate(body.outputs):
            if value is not None and not isinstance(value, PendingList) and not same[at]:
                types[at] = _merged(types[at], value.type)
        if types == before:
            return body
    raise UnsupportedOpError(
        "a loop variable must keep its type from one iteration to the next. Received: "
        f"{', '.join(str(type) for type in types if type is not None)}. Set the shape of what "
        "the body returns."
    )


def _lower_part(
    c: GraphLowering,
    name: str,
    starts: Sequence[Optional[Value]],
    types: Sequence[Optional[TensorType]],
    same: Sequence[bool],
    lower: _Lower,
) -> _Part:
    step = StepGraph(Graph(name))
    b = Builder(step.graph, c.b.evaluate)
    inputs: list[Optional[Value]] = []
    arguments: list[Optional[Value]] = []
    for at, (value, type) in enumerate(zip(starts, types)):
        made = None
        if value is not None and same[at] and value.node is not None and not value.node.inputs:
            argument: Optional[Value] = b.emit(
                value.node.op, [], value.node.attrs, [value.type]
            ).output
        elif value is None or type is None:
            argument = value
        else:
            argument = made = step.graph.add_input(f"variable_{at}", type)
        inputs.append(made)
        arguments.append(argument)
    outputs, state, captured = lower(arguments, step, b)
    step.updates = state.updates()
    return _Part(step, inputs, outputs, captured)


def _merged(old: Optional[TensorType], new: TensorType) -> TensorType:
    """The type of a loop variable that has both; sizes that differ are unknown."""
    if old is None:
        return new
    if old.dtype != new.dtype or old.rank != new.rank:
        raise UnsupportedOpError(
            "a loop variable must keep its dtype and rank from one iteration to the next. "
            f"Received: {old} and {new}. Cast or reshape it."
        )
    return old.with_shape(tuple(a if a == b else None for a, b in zip(old.shape, new.shape)))


def _start(c: GraphLowering, value: Optional[Value], type: Optional[TensorType]) -> Value:
    assert value is not None and type is not None
    if isinstance(value, PendingList):
        return value.filled(c.b, type.shape[1:])
    if value.type == type:
        return value
    # A size that changes in the loop is not known before it either.
    target = c.b.op("shape_of", value, dtype="int64")
    return c.b.op("reshape_dynamic", value, target, shape=type.shape)


def _forwarded(tensor: Tensor) -> Tensor:
    """What identities were applied to."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _position(body: FunctionBody, tensor: Tensor) -> int:
    return next(at for at, output in enumerate(body.outputs) if output is tensor)


# Loops of version 1.


@lowers("LoopCond")
def _loop_cond(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Lowers the whole loop and sets the values of its Exits."""
    merges = frame_of(innermost(op)).variables
    switches = [switch_of(merge) for merge in merges]
    starts: _Values = [c.value(merge.inputs[0]) for merge in merges]
    nexts = [merge.inputs[1].op.inputs[0] for merge in merges]
    same = [_forwarded(t) is s.outputs[1] for t, s in zip(nexts, switches)]

    def lower(
        wanted: Sequence[Tensor], arguments: _Values, step: StepGraph, b: Builder
    ) -> _Lowered:
        state = VariableState(step, c.state, in_branch=True)
        inner = c.inside(step, b, state)
        for merge, switch, value in zip(merges, switches, arguments):
            assert value is not None
            for tensor in (*merge.outputs, *switch.outputs):
                inner.bind(tensor, value)
        inner.lower_all([tensor.op for tensor in wanted])
        return [inner.value(tensor) for tensor in wanted], state, dict(inner.captured)

    last = lower_loop(
        c,
        op,
        op.name.rpartition("/")[0].rpartition("/")[2] or "while",
        starts,
        same,
        lambda *given: lower([op.inputs[0]], *given),
        lambda *given: lower(nexts, *given),
        c.state.handles(),
    )
    for merge, value in zip(merges, last):
        for done in exits_of(merge):
            c.bind(done.outputs[0], value)
    return [c.b.constant(False)]


@lowers("Enter", "RefEnter")
def _enter(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """The value outside of the loop."""
    return [c.value(op.inputs[0])]


@lowers("Exit", "RefExit", "NextIteration", "RefNextIteration")
def _of_loop(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Has its value from the loop's LoopCond."""
    return [c.value(op.outputs[0])]
