"""Reads and writes at positions that are data: gather, scatter, segments, unique, top-k.

Writes at repeated positions are summed, except by the `_update` ops.

Legend: N positions, D rows of the table, K coordinates of a position.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tf.errors import GraphError, UnsupportedOpError
from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ir.dimensions import whole
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.gradients import Cotangents, of_one_output
from cerebras_tf.ops.inference import same_as_first
from cerebras_tf.ops.registry import Attrs, Types, element_flops, register
from cerebras_tf.ops.shape import reshape, zeros_like
from cerebras_tf.ops.sizes import counted, known_count


def _gather_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """gather(params, indices; axis, batch_dims)"""
    params, indices = inputs
    axis, batch_dims = attrs["axis"], attrs["batch_dims"]
    if not 0 <= batch_dims <= axis < params.type.rank or "int" not in indices.dtype:
        raise GraphError(
            f"gather: 0 <= batch_dims <= axis < rank and integer indices. Received: {params!r}, "
            f"{indices!r}, {attrs}. Correct them."
        )
    dims = params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis + 1 :]
    return [params.type.with_shape(dims)]


@of_one_output
def _gather_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """Rows are summed into a table with the gathered axis first, which is then moved back."""
    params, indices = node.inputs
    axis, batch_dims = node.attrs["axis"], node.attrs["batch_dims"]
    batch, outer = params.shape[:batch_dims], params.shape[batch_dims:axis]
    rows, inner = params.shape[axis], params.shape[axis + 1 :]
    span = indices.type.rank - batch_dims
    # dy: batch, outer, positions, inner -> batch, positions, outer, inner
    order = (
        *range(batch_dims),
        *range(axis, axis + span),
        *range(batch_dims, axis),
        *range(axis + span, dy.type.rank),
    )
    count = -1 if None in indices.shape else indices.type.size
    updates = b.op("reshape", _transpose(b, dy, order), shape=(count, *outer, *inner))
    ids = b.op("reshape", _flat_rows(b, node), shape=(count,))
    if rows is None:
        sizes = b.op("shape_of", params, dtype="int64")
        dim = b.op("slice", sizes, starts=(axis,), sizes=(1,), strides=(1,))
        table = b.op("unsorted_segment_sum", updates, ids, b.op("reshape", dim, shape=()))
    else:
        num_rows = params.type.with_shape((*batch, rows)).size
        table = b.op("scatter_add_rows", ids, updates, num_rows=num_rows)
    back = (
        *range(batch_dims),
        *range(batch_dims + 1, axis + 1),
        batch_dims,
        *range(axis + 1, params.type.rank),
    )
    return [_transpose(b, reshape(b, table, (*batch, rows, *outer, *inner)), back), None]


def _flat_rows(b: Builder, node: Node) -> Value:
    """Indices of a gather into one table in which the batches are concatenated."""
    params, indices = node.inputs
    axis, batch_dims = node.attrs["axis"], node.attrs["batch_dims"]
    if not batch_dims:
        return indices
    batch, rows = params.shape[:batch_dims], params.shape[axis]
    if rows is None or None in batch:
        raise UnsupportedOpError(
            f"gradient of gather: batches must have known sizes. Received: {node!r}. "
            "Gather without batch_dims."
        )
    first_rows = counted(b, params.type.with_shape(batch).size, rows, indices.dtype)
    shape = (*batch, *(1,) * (indices.type.rank - batch_dims))
    return b.op("add", indices, reshape(b, first_rows, shape))


def _transpose(b: Builder, x: Value, order: tuple[int, ...]) -> Value:
    if order == tuple(range(len(order))):
        return x
    return b.op("transpose", x, permutation=order)


def _scatter_add_rows_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """scatter_add_rows(indices [N], updates [N, ...]; num_rows) -> [num_rows, ...]"""
    indices, updates = inputs
    if indices.type.rank != 1:
        raise GraphError(
            f"scatter_add_rows: indices must be a vector. Received: {indices!r}. Reshape them."
        )
    return [updates.type.with_shape((attrs["num_rows"], *updates.shape[1:]))]


@of_one_output
def _scatter_add_rows_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [None, b.op("gather", dy, node.inputs[0], axis=0, batch_dims=0)]


def _segment_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """unsorted_segment_sum(data, ids, num_segments): ids has data's leading dimensions"""
    data, ids, num_segments = inputs
    rows = known_count(num_segments)
    return [data.type.with_shape((rows, *data.shape[ids.type.rank :]))]


@of_one_output
def _segment_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """Negative ids were dropped, so their rows have no gradient."""
    _, ids, _ = node.inputs
    rows = _rows_of_segments(b, dy, ids)
    return [b.op("select", _kept(b, ids, rows), rows, b.constant(0, rows.dtype)), None, None]


def _rows_of_segments(b: Builder, table: Value, ids: Value) -> Value:
    """The row of a table at each id; the first row at negative ids."""
    return b.op("gather", table, b.op("maximum", ids, 0), axis=0, batch_dims=0)


def _kept(b: Builder, ids: Value, like: Value) -> Value:
    """Whether ids are not negative, with trailing axes of size 1 up to the rank of `like`."""
    kept = b.op("greater_equal", ids, b.constant(0, ids.dtype))
    return reshape(b, kept, ids.shape + (1,) * (like.type.rank - ids.type.rank))


@of_one_output
def _segment_extreme_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """unsorted_segment_max or min(data, ids, num_segments): equal elements share the cotangent."""
    data, ids, count = node.inputs
    chosen = b.op("equal", data, _rows_of_segments(b, node.output, ids))
    chosen = b.op("logical_and", chosen, _kept(b, ids, data))
    ties = b.op("unsorted_segment_sum", b.op("cast", chosen, dtype=dy.dtype), ids, count)
    share = _rows_of_segments(b, b.op("div_no_nan", dy, ties), ids)
    return [b.op("select", chosen, share, b.constant(0, dy.dtype)), None, None]


@of_one_output
def _segment_prod_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """unsorted_segment_prod: the product of all other elements, which zeros do not divide."""
    data, ids, count = node.inputs
    zero, one = b.constant(0, data.dtype), b.constant(1, data.dtype)
    is_zero = b.op("equal", data, zero)
    zeros = b.op("unsorted_segment_sum", b.op("cast", is_zero, dtype=dy.dtype), ids, count)
    several = b.op("greater", zeros, b.constant(1, dy.dtype))
    dy = b.op("select", several, b.constant(0, dy.dtype), dy)
    without = b.op("select", is_zero, one, data)
    products = b.op("unsorted_segment_prod", without, ids, count)
    others = b.op("div", _rows_of_segments(b, node.output, ids), without)
    others = b.op("select", is_zero, _rows_of_segments(b, products, ids), others)
    dx = b.op("mul", _rows_of_segments(b, dy, ids), others)
    return [b.op("select", _kept(b, ids, dx), dx, zero), None, None]


def _gather_nd_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """gather_nd(params, indices [..., K])"""
    params, indices = inputs
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise GraphError(
            f"gather_nd: coordinates must be a known number. Received: {indices!r}. "
            "Set the static shape of the indices."
        )
    return [params.type.with_shape(indices.shape[:-1] + params.shape[depth:])]


@of_one_output
def _gather_nd_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    params, indices = node.inputs
    if params.type.is_bounded:
        return [b.op("scatter_nd", indices, dy, shape=params.shape), None]
    return [b.op("scatter_nd_add", zeros_like(b, params), indices, dy), None]


def _scatter_nd_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """scatter_nd(indices [..., K], updates; shape): zeros with updates added"""
    return [inputs[1].type.with_shape(tuple(attrs["shape"]))]


@of_one_output
def _scatter_nd_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [None, b.op("gather_nd", dy, node.inputs[0])]


@of_one_output
def _scatter_nd_add_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """scatter_nd_add(x, indices [..., K], updates): x with updates added"""
    return [dy, None, b.op("gather_nd", dy, node.inputs[1])]


@of_one_output
def _scatter_nd_update_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    """scatter_nd_update(x, indices [..., K], updates): x with updates in place of elements"""
    _, indices, updates = node.inputs
    cleared = b.op("scatter_nd_update", dy, indices, zeros_like(b, updates))
    return [cleared, None, b.op("gather_nd", dy, indices)]


def _rows_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """rows_add or rows_update(x [D, ...], indices, updates [*indices.shape, ...])"""
    x, indices, updates = inputs
    if updates.type.rank != indices.type.rank + x.type.rank - 1 or updates.dtype != x.dtype:
        raise GraphError(
            f"rows: updates must be one row of the table an index. Received: {list(inputs)}. "
            "Reshape or cast the updates."
        )
    return [x.type]


@of_one_output
def _rows_add_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    return [dy, None, b.op("gather", dy, node.inputs[1], axis=0, batch_dims=0)]


@of_one_output
def _rows_update_vjp(b: Builder, node: Node, dy: Value) -> Cotangents:
    _, indices, updates = node.inputs
    cleared = b.op("rows_update", dy, indices, zeros_like(b, updates))
    return [cleared, None, b.op("gather", dy, indices, axis=0, batch_dims=0)]


def _unique_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """unique(x [N]; dtype) -> values in order of first appearance, position of each x in them"""
    return [inputs[0].type.with_shape((None,)), TensorType(attrs["dtype"], inputs[0].shape)]


def _top_k_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """top_k(x; k, dtype) -> the k largest of the last axis in falling order, their positions"""
    dims = (*inputs[0].shape[:-1], whole(attrs["k"]))
    return [inputs[0].type.with_shape(dims), TensorType(attrs["dtype"], dims)]


def _top_k_vjp(b: Builder, node: Node, dys: Cotangents) -> Cotangents:
    (x,), dy = node.inputs, dys[0]
    if dy is None:
        return [None]
    rows, width, k = x.type.with_shape(x.shape[:-1]).size, x.shape[-1], dy.shape[-1]
    if width is None:
        raise UnsupportedOpError(
            f"gradient of top_k: the last axis must have a known size. Received: {node!r}. "
            "Set the static shape."
        )
    base = reshape(b, counted(b, rows, width, "int64"), (rows, 1))
    ids = b.op("cast", reshape(b, node.outputs[1], (rows, k)), dtype="int64")
    flat = reshape(b, b.op("add", ids, base), (None,))
    dx = b.op("scatter_add_rows", flat, reshape(b, dy, flat.shape), num_rows=rows * width)
    return [reshape(b, dx, x.shape)]


def _where_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """where_indices(x) -> coordinates of elements that are not zero, row-major: [?, rank] int64"""
    return [TensorType("int64", (None, inputs[0].type.rank))]


def _update_flops(node: Node) -> Size:
    return node.inputs[-1].type.size


_free = element_flops(0)
register("gather", _gather_infer, _gather_vjp, rows=rows.gather, flops=_free)
register(
    "scatter_add_rows",
    _scatter_add_rows_infer,
    _scatter_add_rows_vjp,
    rows=rows.row_sum(0, 1),
    zeros=(1,),
    flops=_update_flops,
)
register(
    "unsorted_segment_sum",
    _segment_infer,
    _segment_vjp,
    rows=rows.row_sum(1, 0),
    zeros=(0,),
    flops=lambda n: n.inputs[0].type.size,
)
for _name, _vjp in {
    "unsorted_segment_max": _segment_extreme_vjp,
    "unsorted_segment_min": _segment_extreme_vjp,
    "unsorted_segment_prod": _segment_prod_vjp,
}.items():
    register(_name, _segment_infer, _vjp, rows=rows.across, flops=lambda n: n.inputs[0].type.size)
register("gather_nd", _gather_nd_infer, _gather_nd_vjp, rows=rows.leading(1), flops=_free)
register(
    "scatter_nd",
    _scatter_nd_infer,
    _scatter_nd_vjp,
    rows=rows.row_sum(0, 1, keep=1),
    flops=_update_flops,
)
register(
    "scatter_nd_add", same_as_first, _scatter_nd_add_vjp, rows=rows.across, flops=_update_flops
)
register("scatter_nd_update", same_as_first, _scatter_nd_update_vjp, rows=rows.across, flops=_free)
register(
    "rows_add", _rows_infer, _rows_add_vjp, rows=rows.across, overwrites=0, flops=_update_flops
)
register("rows_update", _rows_infer, _rows_update_vjp, rows=rows.across, overwrites=0, flops=_free)
register(
    "unique",
    _unique_infer,
    rows=rows.across,
    differentiable=False,
    flops=lambda n: n.inputs[0].type.size,
)
register(
    "top_k",
    _top_k_infer,
    _top_k_vjp,
    rows=rows.leading(0, outputs=(0, 1)),
    flops=lambda n: n.inputs[0].type.size,
)
register(
    "where_indices",
    _where_infer,
    rows=rows.across,
    differentiable=False,
    flops=lambda n: n.inputs[0].type.size,
)
