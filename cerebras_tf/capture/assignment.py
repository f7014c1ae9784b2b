"""Lowers reads and assignments of variables.

Assignments inside v1 conditionals keep their guard. Where variables live is deliberately not known
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebras_tf.capture.control import guard
from cerebras_tf.capture.optimizer import assign
from cerebras_tf.capture.registry import lowers
from cerebras_tf.ir import Value


@lowers("VarHandleOp", "NoOp")
def _nothing(c: Any, op: Any) -> Sequence[Value]:
    return []


@lowers("ReadVariableOp")
def _read(c: Any, op: Any) -> Sequence[Value]:
    return [c.b.op("identity", c.state.read(op.inputs[0]))]


@lowers("VariableShape")
def _shape(c: Any, op: Any) -> Sequence[Value]:
    shape = c.state.variable(op.inputs[0]).type.shape
    return [c.b.constant(list(shape), op.outputs[0].dtype.name)]


@lowers("VarIsInitializedOp")
def _is_initialized(c: Any, op: Any) -> Sequence[Value]:
    return [c.b.constant(True)]


@lowers("AssignVariableOp")
def _assign(c: Any, op: Any) -> Sequence[Value]:
    assign(c, op, op.inputs[0], c.value(op.inputs[1]))
    return []


def _lower_accumulation(op_type: str, ir_op: str) -> None:
    @lowers(op_type)
    def rule(c: Any, op: Any) -> Sequence[Value]:
        handle = op.inputs[0]
        assign(c, op, handle, c.b.op(ir_op, c.state.read(handle), c.value(op.inputs[1])))
        return []


_lower_accumulation("AssignAddVariableOp", "add")
_lower_accumulation("AssignSubVariableOp", "sub")


@lowers("ResourceGather")
def _gather(c: Any, op: Any) -> Sequence[Value]:
    """Rows of a variable; batch_dims as the op has it."""
    table, ids = c.state.read(op.inputs[0]), c.value(op.inputs[1])
    dims = op.get_attr("batch_dims")
    rows = c.b.op("gather", table, ids, axis=dims, batch_dims=dims)
    _note_gather(c, op, ids, rows)
    return [rows]


@lowers("ResourceGatherNd")
def _gather_nd(c: Any, op: Any) -> Sequence[Value]:
    """Elements or rows of a variable; whole rows have sparse gradients."""
    table, ids = c.state.read(op.inputs[0]), c.value(op.inputs[1])
    rows = c.b.op("gather_nd", table, ids)
    if ids.type.rank == 2 and ids.shape[1] == 1:
        _note_gather(c, op, c.b.op("reshape", ids, shape=(-1,)), rows)
    return [rows]


def _note_gather(c: Any, op: Any, ids: Value, rows: Value) -> None:
    if guard(c, op) is None:
        c.gathers.append((c.state.variable(op.inputs[0]).name, ids, rows))


def _lower_scatter(op_type: str, ir_op: str, negate: bool = False) -> None:
    @lowers(op_type)
    def rule(c: Any, op: Any) -> Sequence[Value]:
        handle = op.inputs[0]
        ids, rows = c.value(op.inputs[1]), c.value(op.inputs[2])
        if negate:
            rows = c.b.op("neg", rows)
        table = c.state.read(handle)
        shape = (*ids.shape, *table.shape[1:])
        if rows.shape != shape and rows.type.rank == 0:
            rows = c.b.op("broadcast_to", rows, shape=shape)
        assign(c, op, handle, c.b.op(ir_op, table, ids, rows))
        return []


_lower_scatter("ResourceScatterAdd", "rows_add")
_lower_scatter("ResourceScatterSub", "rows_add", negate=True)
_lower_scatter("ResourceScatterUpdate", "rows_update")
