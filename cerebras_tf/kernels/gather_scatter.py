"""Plain kernels of gathers, scatters, segments, unique and top-k: the definitions.

Indices out of range raise, as in TensorFlow; NumPy would count negative ones from the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.errors import BoundsError
from cerebras_tf.kernels.registry import plain


def check_indices(indices: np.ndarray, count: int, where: str, what: str = "indices") -> None:
    """Raises BoundsError, naming the first, if an index (integers of any shape) is not in [0,
    count)."""
    if not indices.size or (indices.min() >= 0 and indices.max() < count):
        return
    flat = indices.reshape(-1)
    at = int(np.flatnonzero((flat < 0) | (flat >= count))[0])
    raise BoundsError(
        f"{where}: {what} must lie in [0, {count}). Received: {flat[at]} at position {at} of "
        f"{flat.size}. Correct the {what} or the size of the table or vocabulary."
    )


# Rows at least this long are summed group by group, which is faster than reduceat.
_WIDE_ROW = 16


@plain("gather")
def gather(params, indices, *, axis, batch_dims):
    """Slices of params at indices along an axis; the first batch_dims axes are common to both."""
    check_indices(indices, params.shape[axis], "gather")
    if batch_dims == 0:
        return np.take(params, indices, axis)
    batch = params.shape[:batch_dims]
    flat_params = params.reshape(-1, *params.shape[batch_dims:])
    flat_indices = indices.reshape(-1, *indices.shape[batch_dims:])
    rows = [np.take(p, i, axis - batch_dims) for p, i in zip(flat_params, flat_indices)]
    dims = params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis + 1 :]
    return np.stack(rows).reshape(dims) if batch != (0,) else np.empty(dims, params.dtype)


def _add_rows(
    table: np.ndarray, indices: np.ndarray, updates: np.ndarray, where: str
) -> np.ndarray:
    """Adds updates[i] to table[indices[i]] in place; returns the table."""
    if not indices.size:
        return table
    check_indices(indices, len(table), where)
    order = np.argsort(indices, kind="stable")
    ids = indices[order]
    first = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    if updates[0].size < _WIDE_ROW:
        table[ids[first]] += np.add.reduceat(updates[order], first, axis=0)
        return table
    counts = np.diff(np.r_[first, ids.size])
    single = first[counts == 1]
    table[ids[single]] += updates[order[single]]
    for start, count in zip(first[counts > 1], counts[counts > 1]):
        table[ids[start]] += updates[order[start : start + count]].sum(0)
    return table


@plain("scatter_add_rows")
def scatter_add_rows(indices, updates, *, num_rows):
    """Zeros [num_rows, ...] with updates[i] added to row indices[i]."""
    table = np.zeros((num_rows, *updates.shape[1:]), updates.dtype)
    return _add_rows(table, indices, updates, "scatter_add_rows")


def _rows_by_segment(data: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ids [N], rows of data [N, ...]) without those of negative ids."""
    flat_ids = ids.reshape(-1)
    rows = data.reshape(flat_ids.size, *data.shape[ids.ndim :])
    kept = flat_ids >= 0
    return (flat_ids, rows) if kept.all() else (flat_ids[kept], rows[kept])


@plain("unsorted_segment_sum")
def unsorted_segment_sum(data, ids, num_segments):
    """Sums of the rows of data by segment id; rows with a negative id are dropped."""
    flat_ids, rows = _rows_by_segment(data, ids)
    table = np.zeros((int(num_segments), *rows.shape[1:]), rows.dtype)
    return _add_rows(table, flat_ids, rows, "unsorted_segment_sum")


def _reduced_by_segment(
    ufunc: np.ufunc, empty: Any, data: np.ndarray, ids: np.ndarray, num_segments: Any, where: str
) -> np.ndarray:
    """Reduces the rows of data by segment id; `empty` in segments without rows."""
    flat_ids, rows = _rows_by_segment(data, ids)
    table = np.full((int(num_segments), *rows.shape[1:]), empty, rows.dtype)
    check_indices(flat_ids, len(table), where)
    if flat_ids.size:
        order = np.argsort(flat_ids, kind="stable")
        sorted_ids = flat_ids[order]
        first = np.flatnonzero(np.r_[True, sorted_ids[1:] != sorted_ids[:-1]])
        table[sorted_ids[first]] = ufunc.reduceat(rows[order], first, axis=0)
    return table


def _limits(dtype: np.dtype) -> Any:
    return np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)


@plain("unsorted_segment_max")
def unsorted_segment_max(data, ids, num_segments):
    """Largest elements by segment id; the lowest number of the dtype in empty segments."""
    empty, name = _limits(data.dtype).min, "unsorted_segment_max"
    return _reduced_by_segment(np.maximum, empty, data, ids, num_segments, name)


@plain("unsorted_segment_min")
def unsorted_segment_min(data, ids, num_segments):
    """Smallest elements by segment id; the highest number of the dtype in empty segments."""
    empty, name = _limits(data.dtype).max, "unsorted_segment_min"
    return _reduced_by_segment(np.minimum, empty, data, ids, num_segments, name)


@plain("unsorted_segment_prod")
def unsorted_segment_prod(data, ids, num_segments):
    """Products by segment id; 1 in empty segments."""
    name = "unsorted_segment_prod"
    return _reduced_by_segment(np.multiply, 1, data, ids, num_segments, name)


def _coordinates(indices: np.ndarray, shape: tuple[int, ...], where: str) -> tuple[np.ndarray, ...]:
    """Indices along each of the first axes of a shape."""
    found = tuple(np.moveaxis(indices, -1, 0))
    for along, count in zip(found, shape):
        check_indices(along, count, where)
    return found


@plain("gather_nd")
def gather_nd(params, indices):
    """Slices of params at coordinates indices[..., :]."""
    return np.array(params[_coordinates(indices, params.shape, "gather_nd")], order="C")


@plain("scatter_nd")
def scatter_nd(indices, updates, *, shape):
    """Zeros with updates added at coordinates indices[..., :]."""
    return scatter_nd_add(np.zeros(shape, updates.dtype), indices, updates)


@plain("scatter_nd_add")
def scatter_nd_add(x, indices, updates):
    """x with updates added at coordinates indices[..., :]."""
    depth = indices.shape[-1]
    weights = np.array([int(np.prod(x.shape[i + 1 : depth])) for i in range(depth)], "int64")
    rows = (indices.astype("int64") * weights).sum(-1).reshape(-1)
    _coordinates(indices, x.shape, "scatter_nd_add")
    table = x.reshape(-1, *x.shape[depth:]).copy()
    _add_rows(table, rows, updates.reshape(rows.size, *x.shape[depth:]), "scatter_nd_add")
    return table.reshape(x.shape)


@plain("scatter_nd_update")
def scatter_nd_update(x, indices, updates):
    """x with the slices at coordinates indices[..., :] replaced by updates."""
    result = x.copy()
    result[_coordinates(indices, x.shape, "scatter_nd_update")] = updates
    return result


@plain("rows_add")
def rows_add(x, indices, updates):
    """x with updates added to its rows at indices; repeated rows get all of theirs."""
    rows = updates.reshape(indices.size, *x.shape[1:])
    return _add_rows(x.copy(), indices.reshape(-1), rows, "rows_add")


@plain("rows_update")
def rows_update(x, indices, updates):
    """x with its rows at indices replaced by updates; the last update of a row wins."""
    check_indices(indices, len(x), "rows_update")
    result = x.copy()
    result[indices] = updates
    return result


@plain("unique")
def unique(x, *, dtype):
    """The distinct values in order of first appearance, and each element's position among them."""
    values, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return values[order], rank[inverse.reshape(-1)].astype(dtype)


@plain("top_k")
def top_k(x, *, k, dtype):
    """The k largest of the last axis in descending order and their positions; ties by position."""
    backwards = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1][..., :k]
    positions: Any = x.shape[-1] - 1 - backwards
    return np.take_along_axis(x, positions, -1), positions.astype(dtype)


@plain("where_indices")
def where_indices(x):
    """Coordinates of the elements that are not zero, in row-major order: [count, rank] int64."""
    return np.argwhere(x).astype("int64", copy=False)
