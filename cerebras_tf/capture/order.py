"""Which TensorFlow operations a capture visits, and in which order.

Operations come in the order they were built, as far as data and control edges allow, so that reads
and assignments of variables happen in the order of the model's code.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable
from operator import attrgetter

from cerebras_tf.capture.operations import Operation


def all_before(
    roots: Iterable[Operation],
    control_inputs: Callable[[Operation], Iterable[Operation]] = attrgetter("control_inputs"),
    excluded: Callable[[Operation], bool] = lambda op: False,
    fed: Container[object] = (),
) -> list[Operation]:
    """Operations that TensorFlow's session would run to fetch the roots, including the roots.

    Args:
        control_inputs: returns the control inputs of an operation.
        excluded: returns whether to skip an operation, and those that only it needs.
        fed: tensors with a given value, whose operations need not run.
    """
    found: dict[Operation, None] = {}
    stack = list(roots)
    while stack:
        op = stack.pop()
        if op not in found and not excluded(op):
            found[op] = None
            stack.extend(tensor.op for tensor in op.inputs if tensor not in fed)
            stack.extend(control_inputs(op))
    return list(found)


def execution_order(
    roots: Iterable[Operation],
    dependencies: Callable[[Operation], Iterable[Operation]],
    position: dict[Operation, int],
) -> list[Operation]:
    """Operations the roots depend on, in dependency order, earliest built first.

    Args:
        roots: operations that must run.
        dependencies: returns the operations that must run before an operation.
        position: index of every operation in the order of building.
    """
    waiting: dict[Operation, int] = {}
    users: dict[Operation, list[Operation]] = {}
    stack = list(roots)
    while stack:
        op = stack.pop()
        if op in waiting:
            continue
        before = list(dict.fromkeys(dependencies(op)))
        waiting[op] = len(before)
        for other in before:
            users.setdefault(other, []).append(op)
            stack.append(other)
    ready = [(position[op], i, op) for i, op in enumerate(waiting) if waiting[op] == 0]
    heapq.heapify(ready)
    count = len(ready)
    ordered = []
    while ready:
        op = heapq.heappop(ready)[-1]
        ordered.append(op)
        for user in users.get(op, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                count += 1
                heapq.heappush(ready, (position[user], count, user))
    return ordered
