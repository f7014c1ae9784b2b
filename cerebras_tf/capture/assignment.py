"""Lowerings of reads and assignments of variables."""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.capture.control import assign, guard
from cerebras_tf.capture.operations import Operation
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.ir import Value


@lowers("VarHandleOp", "NoOp")
def _nothing(low: Lowering, op: Operation) -> Sequence[Value]:
    return []


@lowers("ReadVariableOp")
def _read(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op("identity", low.state.read_detached(low.b, op.inputs[0]))]


@lowers("RngReadAndSkip", "RngSkip")
def _skip(low: Lowering, op: Operation) -> Sequence[Value]:
    """The state of a tf.random.Generator, which then skips the numbers that will be drawn."""
    state = low.state.read(op.inputs[0])
    assign(low, op, op.inputs[0], low.b.op("philox_skip", state, low.value(op.inputs[2])))
    return [state] if op.outputs else []


@lowers("VariableShape")
def _shape(low: Lowering, op: Operation) -> Sequence[Value]:
    shape = low.state.variable(op.inputs[0]).type.shape
    return [low.b.constant(list(shape), op.outputs[0].dtype.name)]


@lowers("VarIsInitializedOp")
def _is_initialized(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.constant(True)]


@lowers("AssignVariableOp")
def _assign(low: Lowering, op: Operation) -> Sequence[Value]:
    assign(low, op, op.inputs[0], low.value(op.inputs[1]))
    return []


def _lower_accumulation(op_type: str, ir_op: str) -> None:
    @lowers(op_type)
    def rule(low: Lowering, op: Operation) -> Sequence[Value]:
        handle = op.inputs[0]
        assign(low, op, handle, low.b.op(ir_op, low.state.read(handle), low.value(op.inputs[1])))
        return []


_lower_accumulation("AssignAddVariableOp", "add")
_lower_accumulation("AssignSubVariableOp", "sub")


@lowers("ResourceGather")
def _gather(low: Lowering, op: Operation) -> Sequence[Value]:
    table, ids = low.state.read_detached(low.b, op.inputs[0]), low.value(op.inputs[1])
    dims = op.get_attr("batch_dims")
    rows = low.b.op("gather", table, ids, axis=dims, batch_dims=dims)
    _record_gather(low, op, ids, rows)
    return [rows]


@lowers("ResourceGatherNd")
def _gather_nd(low: Lowering, op: Operation) -> Sequence[Value]:
    """Elements or rows of a variable. Only whole rows have sparse gradients."""
    table, ids = low.state.read_detached(low.b, op.inputs[0]), low.value(op.inputs[1])
    rows = low.b.op("gather_nd", table, ids)
    if ids.type.rank == 2 and ids.shape[1] == 1:
        _record_gather(low, op, low.b.op("reshape", ids, shape=(-1,)), rows)
    return [rows]


def _record_gather(low: Lowering, op: Operation, ids: Value, rows: Value) -> None:
    if guard(low, op) is None:
        low.gathers.append((low.state.variable(op.inputs[0]).name, ids, rows))


def _lower_scatter(op_type: str, ir_op: str, negate: bool = False) -> None:
    @lowers(op_type)
    def rule(low: Lowering, op: Operation) -> Sequence[Value]:
        handle = op.inputs[0]
        ids, rows = low.value(op.inputs[1]), low.value(op.inputs[2])
        if negate:
            rows = low.b.op("neg", rows)
        table = low.state.read(handle)
        shape = (*ids.shape, *table.shape[1:])
        if rows.shape != shape and rows.type.rank == 0:
            rows = low.b.op("broadcast_to", rows, shape=shape)
        assign(low, op, handle, low.b.op(ir_op, table, ids, rows))
        return []


_lower_scatter("ResourceScatterAdd", "rows_add")
_lower_scatter("ResourceScatterSub", "rows_add", negate=True)
_lower_scatter("ResourceScatterUpdate", "rows_update")
