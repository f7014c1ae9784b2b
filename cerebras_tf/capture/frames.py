"""Loops of version 1: a frame of Enter, Merge, Switch, NextIteration and Exit operations.

A frame is one unit: where it runs is decided for all of its operations, and the rule of its
LoopCond lowers it. What TensorFlow's backward graph adds to a frame comes after the LoopCond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional
from weakref import WeakKeyDictionary


@dataclass
class Frame:
    """A loop of version 1, those within it included.

    Attributes:
        variables: the Merge operations of its loop variables.
        operations: what its iterations need, and its Exits.
        enters: Enter operations of its own that these read.
    """

    variables: list[Any]
    operations: list[Any]
    enters: list[Any]


ENTERS = ("Enter", "RefEnter")
EXITS = ("Exit", "RefExit")
_SWITCHES = ("Switch", "RefSwitch")
_MERGES = ("Merge", "RefMerge")
_frames: WeakKeyDictionary[Any, Frame] = WeakKeyDictionary()


def innermost(op: Any) -> Optional[Any]:
    """The context of the innermost loop of version 1 around an operation."""
    # Private API of TensorFlow, as are the attributes of contexts.
    context = op._get_control_flow_context()
    while context is not None and not context.IsWhileContext():
        context = context.outer_context
    return context


def outermost(op: Any) -> Optional[Any]:
    """The context of the outermost loop of version 1 around an operation."""
    found, context = None, op._get_control_flow_context()
    while context is not None:
        found = context if context.IsWhileContext() else found
        context = context.outer_context
    return found


def loop_condition(context: Any) -> Any:
    """The LoopCond of a loop."""
    return context.pivot.op


def switch_of(merge: Any) -> Any:
    """The Switch of a loop variable."""
    context = innermost(merge)
    return next(
        op
        for op in merge.outputs[0].consumers()
        if op.type in _SWITCHES and op.inputs[1].op is loop_condition(context)
    )


def exits_of(merge: Any) -> list[Any]:
    """The Exits of a loop variable."""
    return [op for op in switch_of(merge).outputs[0].consumers() if op.type in EXITS]


def frame_of(context: Any) -> Frame:
    """The operations of a loop."""
    if context not in _frames:
        _frames[context] = _find_frame(context)
    return _frames[context]


def _find_frame(context: Any) -> Frame:
    cond = loop_condition(context)
    position = {op: at for at, op in enumerate(cond.graph.get_operations())}
    switches = [op for op in cond.outputs[0].consumers() if op.type in _SWITCHES]
    merges = [switch.inputs[0].op for switch in switches]
    merges = [op for op in merges if op.type in _MERGES and innermost(op) is context]
    merges = [op for op in merges if position[op] < position[cond]]
    found: dict[Any, None] = {cond: None}
    enters: dict[Any, None] = {}
    stack: list[Any] = [tensor.op for tensor in cond.inputs]
    for merge in merges:
        stack += [merge, switch_of(merge)]
        found.update(dict.fromkeys(exits_of(merge)))
    while stack:
        op = stack.pop()
        if op.type in ENTERS and innermost(op) is context:
            enters[op] = None
            found[op] = None
            continue
        if op in found:
            continue
        found[op] = None
        stack += [t.op for t in op.inputs if t.op not in found]
        stack += [other for other in op.control_inputs if other not in found]
        if op.type in EXITS:  # of a loop within
            inner = frame_of(innermost(op))
            found.update(dict.fromkeys(inner.operations))
            stack += [t.op for enter in inner.enters for t in enter.inputs if t.op not in found]
    return Frame(merges, list(found), list(enters))


def outside_makers(context: Any) -> list[Any]:
    """Operations outside of a loop whose values it reads."""
    return [tensor.op for enter in frame_of(context).enters for tensor in enter.inputs]
