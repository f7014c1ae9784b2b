"""Lowerings of gathers, scatters, segment sums and partitions of tensors.

Gathers and scatters of variables are in assignment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cerebras_tf.capture.elementwise import cast
from cerebras_tf.capture.operations import Operation, Tensor
from cerebras_tf.capture.registry import Lowering, lowers
from cerebras_tf.capture.shape_arithmetic import constant_if_known, integers, known_numbers, sizes
from cerebras_tf.capture.slicing import concatenated
from cerebras_tf.ir import Value
from cerebras_tf.ops.inference import normalize_axes
from cerebras_tf.ops.shape import reshape, zeros_like
from cerebras_tf.ops.slicing import cut


@lowers("Gather", "GatherV2")
def _gather(low: Lowering, op: Operation) -> Sequence[Value]:
    params, indices = low.value(op.inputs[0]), low.value(op.inputs[1])
    axis, batch_dims = 0, 0
    if op.type == "GatherV2":
        (axis,) = normalize_axes(integers(low, op.inputs[2], "axis"), params.type.rank)
        batch_dims = int(op.get_attr("batch_dims"))
        batch_dims += indices.type.rank if batch_dims < 0 else 0
    return [low.b.op("gather", params, indices, axis=axis, batch_dims=batch_dims)]


@lowers("ScatterNd")
def _scatter_nd(low: Lowering, op: Operation) -> Sequence[Value]:
    indices, updates = low.inputs(op)[:2]
    shape = tuple(sizes(low, op.inputs[2], "shape"))
    return [low.b.op("scatter_nd", indices, updates, shape=shape)]


@lowers("TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate")
def _tensor_scatter(low: Lowering, op: Operation) -> Sequence[Value]:
    x, indices, updates = low.inputs(op)
    if op.type == "TensorScatterUpdate":
        return [low.b.op("scatter_nd_update", x, indices, updates)]
    if op.type == "TensorScatterSub":
        updates = low.b.op("neg", updates)
    return [low.b.op("scatter_nd_add", x, indices, updates)]


@lowers("Unique", "UniqueV2", "UniqueWithCounts")
def _unique(low: Lowering, op: Operation) -> Sequence[Value]:
    x, dtype = low.value(op.inputs[0]), op.get_attr("out_idx").name
    values, positions = low.b.multi("unique", x, dtype=dtype)
    if op.type != "UniqueWithCounts":
        return [values, positions]
    size = low.b.op("shape_of", values, dtype="int64")
    count = low.b.op("reshape", size, shape=())
    ones = low.b.op("add", low.b.op("mul", positions, 0), 1)
    return [values, positions, low.b.op("unsorted_segment_sum", ones, positions, count)]


_SEGMENTS = {
    f"{prefix}Segment{kind}": f"unsorted_segment_{kind.lower()}"
    for prefix in ("", "Unsorted")
    for kind in ("Max", "Min", "Prod", "Sum")
}


@lowers(*_SEGMENTS, "SegmentMean")
def _segment(low: Lowering, op: Operation) -> Sequence[Value]:
    """Missing ids of the ops without Unsorted are empty segments: 0, or 1 of a product."""
    b, (data, ids, *given) = low.b, low.inputs(op)
    if given:
        count = constant_if_known(low, given[0])
        return [b.op(_SEGMENTS[op.type], data, ids, count)]
    count = _count_segments(low, op.inputs[1])
    result = b.op(_SEGMENTS.get(op.type, "unsorted_segment_sum"), data, ids, count)
    if op.type in ("SegmentSum", "SegmentProd"):
        return [result]
    column = reshape(b, ids, (*ids.shape, *(1,) * (data.type.rank - 1)))
    ones = cast(b, b.op("equal", column, column), data.dtype)
    rows = b.op("unsorted_segment_sum", ones, ids, count)
    if op.type == "SegmentMean":
        return [b.op("div", result, b.op("maximum", rows, 1))]
    return [b.op("select", b.op("equal", rows, 0), b.constant(0, data.dtype), result)]


@lowers("SparseTensorDenseMatMul")
def _sparse_product(low: Lowering, op: Operation) -> Sequence[Value]:
    """Rows of the dense matrix, each times a value of the sparse one, summed by its row."""
    b, (indices, values, shape, dense) = low.b, low.inputs(op)
    row, column = (0, 1) if not op.get_attr("adjoint_a") else (1, 0)
    if op.get_attr("adjoint_b"):
        dense = b.op("transpose", dense, permutation=(1, 0))
    rows, columns = (
        reshape(b, cut(b, indices, 1, axis, 1), (indices.shape[0],)) for axis in (row, column)
    )
    count = constant_if_known(low, reshape(b, cut(b, shape, 0, row, 1), ()))
    found = b.op("gather", dense, columns, axis=0, batch_dims=0)
    terms = b.op("mul", found, reshape(b, values, (*values.shape, 1)))
    return [b.op("unsorted_segment_sum", terms, rows, count)]


@lowers("TopK", "TopKV2")
def _top_k(low: Lowering, op: Operation) -> Sequence[Value]:
    """Where k depends on data, all elements are sorted and the first k are gathered."""
    b, x = low.b, low.value(op.inputs[0])
    dtype = low.tf_type(op.outputs[1]).dtype
    if op.type == "TopK":
        return b.multi("top_k", x, k=int(op.get_attr("k")), dtype=dtype)
    (k,) = known_numbers(low.value(op.inputs[1]))
    if k is not None:
        return b.multi("top_k", x, k=k, dtype=dtype)
    if x.shape[-1] is None:
        low.static(op.inputs[1], "k of elements whose number depends on data")
    k_value = low.value(op.inputs[1])
    first = b.op("range", b.constant(0, k_value.dtype), k_value, b.constant(1, k_value.dtype))
    found = b.multi("top_k", x, k=x.shape[-1], dtype=dtype)
    return [b.op("gather", part, first, axis=x.type.rank - 1, batch_dims=0) for part in found]


@lowers("Where")
def _where(low: Lowering, op: Operation) -> Sequence[Value]:
    return [low.b.op("where_indices", low.inputs(op)[0])]


def _count_segments(low: Lowering, tensor: Tensor) -> Value:
    """Number of segments: ids are sorted, so the last one gives it."""
    known = low.segments(tensor)
    if known is not None:
        return known
    last = low.b.op("max", low.value(tensor), axes=(0,), keepdims=False)
    return low.b.op("add", last, 1)


@lowers(
    *(
        f"SparseSegment{kind}{count}"
        for kind in ("Sum", "Mean", "SqrtN")
        for count in ("", "WithNumSegments")
    )
)
def _sparse_segment(low: Lowering, op: Operation) -> Sequence[Value]:
    """Sums of gathered rows, divided by the number of rows of each segment or by its root."""
    b, ids = low.b, low.value(op.inputs[2])
    rows = b.op("gather", low.value(op.inputs[0]), low.value(op.inputs[1]), axis=0, batch_dims=0)
    if op.type.endswith("WithNumSegments"):
        count = constant_if_known(low, low.value(op.inputs[3]))
    else:
        count = _count_segments(low, op.inputs[2])
    total = b.op("unsorted_segment_sum", rows, ids, count)
    if "Sum" in op.type:
        return [total]
    ones = b.op("cast", b.op("greater_equal", ids, 0), dtype=rows.dtype)
    members = b.op("maximum", b.op("unsorted_segment_sum", ones, ids, count), 1.0)
    if "SqrtN" in op.type:
        members = b.op("sqrt", members)
    size = total.shape[0] if total.shape[0] is not None else -1
    members = b.op("reshape", members, shape=(size, *(1,) * (rows.type.rank - 1)))
    return [b.op("div", total, members)]


@lowers("DynamicPartition")
def _dynamic_partition(low: Lowering, op: Operation) -> Sequence[Value]:
    data, partitions = low.inputs(op)
    results = []
    for number in range(int(op.get_attr("num_partitions"))):
        here = low.b.op("where_indices", low.b.op("equal", partitions, number))
        results.append(low.b.op("gather_nd", data, here))
    return results


@lowers("DynamicStitch", "ParallelDynamicStitch")
def _dynamic_stitch(low: Lowering, op: Operation) -> Sequence[Value]:
    """Rows of the operands ordered by position; the last one wins at equal positions."""
    b, count = low.b, int(op.get_attr("N"))
    positions, rows = [], []
    for where, value in zip(low.inputs(op)[:count], low.inputs(op)[count:]):
        size = where.type.size if where.type.is_bounded else -1
        positions.append(b.op("reshape", where, shape=(size,)))
        rows.append(b.op("reshape", value, shape=(size, *value.shape[where.type.rank :])))
    everywhere = constant_if_known(low, concatenated(b, positions, 0))
    known = everywhere.constant
    if known is not None:
        order = np.zeros(int(known.max(initial=-1)) + 1, "int64")
        order[known] = np.arange(known.size)
        return [b.op("gather", concatenated(b, rows, 0), b.constant(order), axis=0, batch_dims=0)]
    last = b.op("max", everywhere, axes=(0,), keepdims=False)
    zeros = zeros_like(b, rows[0])
    result = b.op("unsorted_segment_sum", zeros, positions[0], b.op("add", last, 1))
    for ids, part in zip(positions, rows):
        result = b.op("rows_update", result, ids, part)
    return [result]
