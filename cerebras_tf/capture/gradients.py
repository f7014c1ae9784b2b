"""Lowers recorded gradient calls to `gradient` nodes; a pass differentiates them later.

A sparse result (IndexedSlices) becomes the gradient of the gathered rows, with their indices.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Union

import tensorflow as tf

from cerebras_tf.capture.elementwise import cast
from cerebras_tf.capture.operations import Tensor
from cerebras_tf.capture.recording import GradientCall
from cerebras_tf.capture.registry import GraphLowering
from cerebras_tf.capture.slicing import concatenated
from cerebras_tf.errors import GradientError
from cerebras_tf.ir import Node, Value
from cerebras_tf.ops import lookup


def lower_call(capture: GraphLowering, call: GradientCall) -> Iterator[tuple[Tensor, Value]]:
    """Emits one `gradient` node for a call.

    Args:
        capture: the capture, which has lowered the call's operands.
        call: the recorded call.

    Yields:
        Result tensors with their values.

    Raises:
        GradientError: a sparse gradient does not come from gathered rows, or a variable is assigned
            between a function with a custom gradient and that gradient.
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
    for x, result, at, numbers in results:
        parts = [outputs[i] for i in at]
        if not isinstance(result, tf.IndexedSlices):
            total = functools.reduce(lambda a, b: capture.b.op("add", a, b), parts)
            yield result, _boundary(capture, x, total)[0]
        else:
            values, indices = _slices(capture, result, parts, numbers)
            values, indices = _boundary(capture, x, values, indices)
            yield result.values, values
            yield result.indices, indices


def _boundary(capture: GraphLowering, x: Tensor, *values: Value) -> list[Value]:
    """The gradient by x. A variable's gets the node that separates backward pass and update."""
    if x.dtype != tf.resource:
        return list(values)
    name = capture.state.variable(x).name
    return list(capture.b.multi("parameter_gradient", *values, variable=name))


def mark_boundaries(capture: GraphLowering, calls: Iterable[GradientCall]) -> None:
    """Adds the boundary nodes to gradients that TensorFlow's own backward graph computes.

    Args:
        capture: has lowered that graph and its readers.
        calls: the recorded calls that built it.
    """
    graph = capture.step.graph
    mapping: dict[Value, Value] = {}
    marked = []
    forward: list[tuple[Node, Value]] = []  # nodes of the rows keep reading the original indices
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
    """Values whose gradients add up to the gradient by a tensor."""
    if tensor.dtype == tf.resource:
        return capture.state.leaves(tensor)
    return [capture.value(tensor)]


def _reached(ys: list[Value], stops: list[Value]) -> set[Value]:
    """Values that the backward pass from ys may reach."""
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
    """A custom gradient here reads variables as they were at the function; TensorFlow's, as now."""
    nodes = [node for node in capture.b.graph.nodes if node.op == "custom_gradient"]
    reached = _reached(ys, stops) if nodes else set()
    for node in nodes:
        if reached.intersection(node.outputs):
            names = map(capture.state.outdated, node.inputs[node.attrs["xs"] :])
            for name in filter(None, names):
                raise GradientError(
                    "a variable that a custom gradient reads must not be assigned between the "
                    f"function and its gradient. Received: an assignment of {name!r}. "
                    "Assign it after the gradients."
                )


def _gathers(
    capture: GraphLowering, handle: Tensor, ys: list[Value], stops: list[Value]
) -> list[tuple[Value, Value]]:
    """(indices, rows) of the gathers of a variable that the differentiated tensors depend on.

    Other rows must be excluded: optimizers update every row they are given.
    """
    name, reached = capture.state.variable(handle).name, _reached(ys, stops)
    found = [(i, rows) for table, i, rows in capture.gathers if table == name and rows in reached]
    # TensorFlow has found no other use of the table; another path to it is inside a branch.
    past = _reached(ys, [*stops, *(rows for _, rows in found)])
    if not found or past.intersection(capture.state.leaves(handle)):
        raise GradientError(
            f"gradient of '{handle.op.name}': a sparse gradient must come from rows that every "
            "step gathers. Received: another source, such as a branch of tf.cond. Gather before "
            "it, or multiply the table by 1.0 to make its gradient dense."
        )
    return found


def _slices(
    capture: GraphLowering, result: tf.IndexedSlices, parts: list[Value], numbers: list[Value]
) -> tuple[Value, Value]:
    """Rows and indices of all gathers, concatenated."""
    b = capture.b
    rows = [
        b.op("reshape", part, shape=(-1, *part.shape[ids.type.rank :]))
        for part, ids in zip(parts, numbers)
    ]
    numbers = [b.op("reshape", ids, shape=(-1,)) for ids in numbers]
    indices = cast(b, concatenated(b, numbers, 0), result.indices.dtype.name)
    return concatenated(b, rows, 0), indices
