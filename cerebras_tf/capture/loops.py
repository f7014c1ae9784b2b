"""Lowerings of loops, and of the lists of tensors that they read and write.

The value of a list is the stack of its elements. A list that was made without the shape of its
elements is a PendingList until the first write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.control import assign, lower_body
from cerebras_tf.capture.frames import exits_of, frame_of, innermost, switch_of
from cerebras_tf.capture.functions import data_outputs, function_bodies
from cerebras_tf.capture.operations import FunctionBody, Operation, Tensor
from cerebras_tf.capture.registry import GraphLowering, lowers
from cerebras_tf.capture.shape_arithmetic import known_numbers
from cerebras_tf.capture.state import VariableState
from cerebras_tf.errors import UnsupportedOpError
from cerebras_tf.ir import Graph, Shape, Size, StepGraph, TensorType, Value, Variable
from cerebras_tf.ir.program import COMMON_RANDOM_STEP
from cerebras_tf.ops import Builder
from cerebras_tf.ops.counted_loops import Loop, emit_loop
from cerebras_tf.ops.sizes import counts, known_count

# The loop's types are found by lowering its body again with what it returned.
_ATTEMPTS = 4


class PendingList(Value):
    """A list whose elements were not written yet.

    Attributes:
        element: what is known of the shape of its elements; None if that is nothing.
        grows: whether a write beyond its end makes it longer.
    """

    __slots__ = ("element", "grows")

    def __init__(self, dtype: str, count: Size, element: Optional[Shape], grows: bool) -> None:
        super().__init__("list", TensorType(dtype, (count,)))
        self.element, self.grows = element, grows

    def filled(self, b: Builder, element: Shape) -> Value:
        """Zeros for elements of a shape."""
        zero = b.constant(0, self.dtype)
        return b.op("broadcast_to", zero, shape=(*self.shape, *element))


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
    return [lowered[tensor.value_index] for tensor in data_outputs(op)]


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
    found = emit_loop(c.b, Loop(test.step.graph, body.step.graph, carries, consts, drawn))
    for n, value in zip(assigned, found[len(moving) :]):
        assign(c, op, by_name[n], value)
    last = dict(zip(moving, found))
    return [last.get(at, value) for at, value in enumerate(starts)]  # type: ignore[misc]


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


# Lists.


def _element_shape(c: GraphLowering, tensor: Tensor) -> Optional[Shape]:
    """What is known of the shape of a list's elements."""
    value = c.value(tensor)
    if value.type.rank == 0:
        return None
    return tuple(None if n == -1 else n for n in known_numbers(value))


def _stack(c: GraphLowering, tensor: Tensor, like: Optional[Tensor] = None) -> Value:
    """The elements of a list; zeros if it was not written."""
    value = c.value(tensor)
    if not isinstance(value, PendingList):
        return value
    element = value.element
    if (element is None or None in element) and like is not None:
        dims = like.shape
        element = tuple(dims.as_list()) if dims.rank is not None else None
    if element is None or None in element:
        raise UnsupportedOpError(
            "the shape of a list's elements must be known where it is read before it is written. "
            f"Received: {element}. Give tf.TensorArray element_shape, or write it first."
        )
    return value.filled(c.b, element)


def _written(c: GraphLowering, tensor: Tensor, index: Value, item: Value) -> Value:
    """The list after a write."""
    value = c.value(tensor)
    if isinstance(value, PendingList):
        element = item.shape if index.type.rank == 0 else item.shape[1:]
        if value.grows:
            value = _grown(value, index)
        value = value.filled(c.b, element)
    return c.b.op("rows_update", value, index, item)


def _grown(value: PendingList, index: Value) -> PendingList:
    number, count = known_count(index), value.shape[0]
    if not isinstance(number, int) or not isinstance(count, int):
        raise UnsupportedOpError(
            "the number of elements of a list must be known where a loop writes it. Received: "
            "dynamic_size. Give tf.TensorArray the number of iterations as size."
        )
    return PendingList(value.dtype, max(count, number + 1), value.element, True)


@lowers("TensorListReserve")
def _reserve(c: GraphLowering, op: Operation) -> Sequence[Value]:
    (count,) = known_numbers(c.value(op.inputs[1]))
    if count is None:
        raise UnsupportedOpError(
            "the number of elements of a list must be known before the first step. Received: a "
            "value that depends on data. Give tf.TensorArray a static size."
        )
    dtype = op.get_attr("element_dtype").name
    return [PendingList(dtype, count, _element_shape(c, op.inputs[0]), count == 0)]


@lowers("TensorListFromTensor")
def _from_tensor(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [c.value(op.inputs[0])]


@lowers("TensorListStack")
def _list_stack(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_stack(c, op.inputs[0])]


@lowers("TensorListGetItem", "TensorListGather")
def _get_item(c: GraphLowering, op: Operation) -> Sequence[Value]:
    like = op.outputs[0] if op.type == "TensorListGetItem" else None
    elements = _stack(c, op.inputs[0], like)
    return [c.b.op("gather", elements, c.value(op.inputs[1]), axis=0, batch_dims=0)]


@lowers("TensorListSetItem")
def _set_item(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_written(c, op.inputs[0], c.value(op.inputs[1]), c.value(op.inputs[2]))]


@lowers("TensorListScatterIntoExistingList")
def _scatter_into(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_written(c, op.inputs[0], c.value(op.inputs[2]), c.value(op.inputs[1]))]


@lowers("TensorListLength")
def _length(c: GraphLowering, op: Operation) -> Sequence[Value]:
    count = c.value(op.inputs[0]).shape[0]
    if count is None:
        raise UnsupportedOpError("the number of elements of a list must be known.")
    return [counts(c.b, count, "int32")]


@lowers("TensorListConcatV2")
def _concat(c: GraphLowering, op: Operation) -> Sequence[Value]:
    elements = _stack(c, op.inputs[0])
    rows, first, *rest = elements.shape
    if not isinstance(rows, int) or first is None:
        raise UnsupportedOpError("the elements of a list that is joined must have known sizes.")
    lengths = counts(c.b, [first] * rows, "int64")
    return [c.b.op("reshape", elements, shape=(-1, *rest)), lengths]


@lowers("EmptyTensorList")
def _empty(c: GraphLowering, op: Operation) -> Sequence[Value]:
    """Nothing: TensorFlow's backward graph has given a loop within a loop this list."""
    return []


# Lists of version 1: the last operand, a scalar in TensorFlow, is the list.


@lowers("TensorArrayV3")
def _array(c: GraphLowering, op: Operation) -> Sequence[Value]:
    (count,) = known_numbers(c.value(op.inputs[0]))
    if count is None:
        raise UnsupportedOpError(
            "the number of elements of a list must be known before the first step. Received: a "
            "value that depends on data. Give tf.TensorArray a static size."
        )
    dims = op.get_attr("element_shape")
    shape = None if dims.unknown_rank else tuple(d.size if d.size >= 0 else None for d in dims.dim)
    grows = bool(op.get_attr("dynamic_size"))
    made = PendingList(op.get_attr("dtype").name, count, shape, grows)
    return [made, made]


def _is_all(positions: Value, count: Optional[Size]) -> bool:
    content = positions.constant
    if content is None or not isinstance(count, int):
        return False
    return np.array_equal(content, np.arange(count))


@lowers("TensorArrayScatterV3")
def _array_scatter(c: GraphLowering, op: Operation) -> Sequence[Value]:
    positions, items = c.value(op.inputs[1]), c.value(op.inputs[2])
    held = c.value(op.inputs[3])
    if _is_all(positions, items.shape[0]) and held.shape[0] in (items.shape[0], 0):
        return [items]
    return [_written(c, op.inputs[3], positions, items)]


@lowers("TensorArrayGatherV3")
def _array_gather(c: GraphLowering, op: Operation) -> Sequence[Value]:
    positions, elements = c.value(op.inputs[1]), _stack(c, op.inputs[2])
    if _is_all(positions, elements.shape[0]):
        return [elements]
    return [c.b.op("gather", elements, positions, axis=0, batch_dims=0)]


@lowers("TensorArrayReadV3")
def _array_read(c: GraphLowering, op: Operation) -> Sequence[Value]:
    elements = _stack(c, op.inputs[2], op.outputs[0])
    return [c.b.op("gather", elements, c.value(op.inputs[1]), axis=0, batch_dims=0)]


@lowers("TensorArrayWriteV3")
def _array_write(c: GraphLowering, op: Operation) -> Sequence[Value]:
    return [_written(c, op.inputs[3], c.value(op.inputs[1]), c.value(op.inputs[2]))]


@lowers("TensorArraySizeV3")
def _array_size(c: GraphLowering, op: Operation) -> Sequence[Value]:
    count = c.value(op.inputs[1]).shape[0]
    if count is None:
        raise UnsupportedOpError("the number of elements of a list must be known.")
    return [counts(c.b, count, "int32")]
