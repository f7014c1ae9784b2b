"""Lowers recorded gradient calls to `gradient` nodes.

A sparse result (IndexedSlices) becomes the gradient of what was gathered, with the gathered rows'
numbers beside it, as TensorFlow has it. The reverse pass itself stands in passes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Union

import tensorflow as tf

from cerebras_tf.capture.operations import Tensor
from cerebras_tf.capture.recording import GradientCall
from cerebras_tf.capture.registry import GraphLowering
from cerebras_tf.errors import GradientError
from cerebras_tf.ir import Node, Value
from cerebras_tf.ops import lookup


def lower_call(capture: GraphLowering, call: GradientCall) -> Iterator[tuple[Tensor, Value]]:
    """Emits one `gradient` node for a call.

    Args:
        capture: the capture, in which the call's operands are lowered already.
        call: the recorded call.

    Yields:
        Result tensors with their values.

    Raises:
        GradientError: a sparse gradient of another origin than rows gathered, or variables
            assigned between a function with a gradient of its own and that gradient.
    """
    ys = [capture.value(tensor) for tensor in call.ys]
    dys = [None if dy is None else capture.value(dy) for dy in call.dys]
    stops = [x for t in call.stops if capture.has(t) for x in _differentiated(capture, t)]
    _refuse_outdated_reads(capture, ys, stops)
    xs: list[Value] = []
    results: list[tuple[Tensor, Union[Tensor, tf.IndexedSlices], range, list[Value]]] = []
    for x, result in zip(call.xs, call.results):
        if result is None:
            continue
        if isinstance(result, tf.IndexedSlices):
            gathers = _gathers(capture, x, ys, stops)
            numbers, found = [ids for ids, _ in gathers], [rows for _, rows in gathers]
        else:
            numbers, found = [], _differentiated(capture, x)
        results.append((x, result, range(len(xs), len(xs) + len(found)), numbers))
        xs += found
    operands = [*ys, *(dy for dy in dys if dy is not None), *xs, *stops]
    given = tuple(dy is not None for dy in dys)
    outputs = capture.b.multi("gradient", *operands, ys=len(ys), dys=given, xs=len(xs))
    for of, result, at, numbers in results:
        parts = [outputs[i] for i in at]
        if not isinstance(result, tf.IndexedSlices):
            total = functools.reduce(lambda x, y: capture.b.op("add", x, y), parts)
            yield result, _boundary(capture, of, total)[0]
        else:
            values, indices = _slices(capture, result, parts, numbers)
            values, indices = _boundary(capture, of, values, indices)
            yield result.values, values
            yield result.indices, indices


def _boundary(capture: GraphLowering, x: Tensor, *values: Value) -> list[Value]:
    """The gradient by x; by a variable, it passes the boundary between reverse pass and update."""
    if x.dtype != tf.resource:
        return list(values)
    name = capture.state.variable(x).name
    return list(capture.b.multi("parameter_gradient", *values, variable=name))


def mark_boundaries(capture: GraphLowering, calls: Iterable[GradientCall]) -> None:
    """Puts the boundary behind gradients that TensorFlow's own backward graph has computed.

    Args:
        capture: has lowered that graph, and what reads it.
        calls: the recorded calls that made it.
    """
    graph = capture.step.graph
    mapping: dict[Value, Value] = {}
    marked = []
    forward: list[tuple[Node, Value]] = []  # what makes rows reads their numbers as they are
    for call in calls:
        for x, result in zip(call.xs, call.results):
            if result is None or x.dtype != tf.resource:
                continue
            sparse = isinstance(result, tf.IndexedSlices)
            tensors = [result.values, result.indices] if sparse else [result]
            if all(map(capture.has, tensors)):
                values = [capture.value(tensor) for tensor in tensors]
                outputs = _boundary(capture, x, *values)
                mapping.update(zip(values, outputs))
                marked.append((outputs[0].node, values))
                rows, *numbers = values
                made = _made_by(rows)
                forward += [(node, n) for n in numbers for node in made if n in node.inputs]
                for tensor, output in zip(tensors, outputs):
                    capture.bind(tensor, output)
    if not marked:
        return
    graph.replace(mapping)
    capture.state.replace(mapping)
    for maker, value in forward:
        maker.inputs = [value if item is mapping[value] else item for item in maker.inputs]
    for node, values in marked:
        assert node is not None
        node.inputs = values
    graph.sort()


def _made_by(value: Value) -> set[Node]:
    """The nodes that a value depends on."""
    found: set[Node] = set()
    stack = [value]
    while stack:
        node = stack.pop().node
        if node is not None and node not in found:
            found.add(node)
            stack.extend(node.inputs)
    return found


def _differentiated(capture: GraphLowering, tensor: Tensor) -> list[Value]:
    """What the gradient by a tensor adds up over."""
    if tensor.dtype == tf.resource:
        return capture.state.leaves(tensor)
    return [capture.value(tensor)]


def _reached(ys: list[Value], stops: list[Value]) -> set[Value]:
    """Values that the reverse pass from ys may reach."""
    found: set[Value] = set()
    stack = list(ys)
    while stack:
        value = stack.pop()
        if value in found or not value.type.is_floating:
            continue
        found.add(value)
        node = value.node
        if node is None or value in stops or node.op == "stop_gradient":
            continue
        if node.op == "gradient" or lookup(node.op).differentiable:
            stack.extend(node.inputs)
    return found


def _refuse_outdated_reads(capture: GraphLowering, ys: list[Value], stops: list[Value]) -> None:
    """Its own gradient reads variables as they were at the function, TensorFlow as they are now."""
    nodes = [node for node in capture.b.graph.nodes if node.op == "custom_gradient"]
    reached = _reached(ys, stops) if nodes else set()
    for node in nodes:
        if reached.intersection(node.outputs):
            names = map(capture.state.outdated, node.inputs[node.attrs["xs"] :])
            for name in filter(None, names):
                raise GradientError(
                    "a variable that a function with a gradient of its own reads backwards must "
                    f"not be assigned between the two. Received: an assignment of {name!r}. "
                    "Assign it behind the gradients."
                )


def _gathers(
    capture: GraphLowering, handle: Tensor, ys: list[Value], stops: list[Value]
) -> list[tuple[Value, Value]]:
    """(numbers, rows) gathered of a variable on the way to what is differentiated.

    Rows read for another purpose must stay out: optimizers move on whatever rows they are given.
    """
    name, reached = capture.state.variable(handle).name, _reached(ys, stops)
    found = [(ids, rows) for of, ids, rows in capture.gathers if of == name and rows in reached]
    # TensorFlow has found no other use of the table; what still leads to it is inside of a branch.
    past = _reached(ys, [*stops, *(rows for _, rows in found)])
    if not found or past.intersection(capture.state.leaves(handle)):
        raise GradientError(
            f"gradient of '{handle.op.name}': a sparse gradient must come from rows that every "
            "step gathers. Received: one of another origin, as from a branch of tf.cond. Gather "
            "before it, or multiply the table by 1.0 to make its gradient dense."
        )
    return found


def _slices(
    capture: GraphLowering, result: tf.IndexedSlices, parts: list[Value], numbers: list[Value]
) -> tuple[Value, Value]:
    """Rows and their numbers, all gathers one behind the other."""
    b = capture.b
    rows = [
        b.op("reshape", part, shape=(-1, *part.shape[ids.type.rank :]))
        for part, ids in zip(parts, numbers)
    ]
    numbers = [b.op("reshape", ids, shape=(-1,)) for ids in numbers]
    values = rows[0] if len(rows) == 1 else b.op("concat", *rows, axis=0)
    indices = numbers[0] if len(numbers) == 1 else b.op("concat", *numbers, axis=0)
    wanted = result.indices.dtype.name
    if indices.dtype != wanted:
        indices = b.op("cast", indices, dtype=wanted)
    return values, indices
