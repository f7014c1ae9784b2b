"""Compiled gathers and sums of rows, float32: embedding lookup, also in bfloat16, and its gradient.

Letters: V rows of the table, H width, N lookups. Other axes use the plain kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import as_contiguous, as_matrix
from cerebras_tf.kernels.compiled_threads import parallel_for
from cerebras_tf.kernels.gather_scatter import check_indices
from cerebras_tf.kernels.registry import compiled

F = np.float32
Out = tuple[np.ndarray, ...]


def _checked_indices(indices: np.ndarray, rows: int, where: str) -> np.ndarray:
    """Indices as contiguous int64 [N]; raises BoundsError if one is not in [0, rows)."""
    flat = np.array(indices, np.int64).reshape(-1)
    check_indices(flat, rows, where)
    return flat


@jit()
def _gather_rows(start, stop, table, rows_at, out):
    for i in range(start, stop):
        source = table[rows_at[i]]
        row = out[i]
        for j in range(row.size):
            row[j] = source[j]


def _supports_gather(params: Any, indices: Any, *, axis: int, batch_dims: int) -> bool:
    rank = len(params.shape)
    integer = "int" in str(indices.dtype)
    floating = params.dtype in ("float32", "bfloat16")
    return floating and integer and axis == 0 == batch_dims and rank >= 1


@compiled("gather", _supports_gather, reads_bfloat16=True, writes_bfloat16=True)
def gather(params, indices, *, out, axis, batch_dims):
    """Rows of params [V, ...] at indices [...] into [..., ...]."""
    rows_at = _checked_indices(indices, len(params), "gather")
    if not out[0].size:
        return
    table = as_contiguous(params).reshape(len(params), -1)
    rows = out[0].reshape(len(rows_at), -1)
    parallel_for(_gather_rows, len(rows), rows.size, table, rows_at, rows)


@jit()
def _add_columns(start, stop, table, rows_at, updates, out):
    """Columns [start, stop) of out = the table (zeros if it is empty) with updates added.

    The table may be `out` itself.
    """
    in_place = table.size and table.ctypes.data == out.ctypes.data
    for i in range(0 if in_place else out.shape[0]):
        row = out[i, start:stop]
        if table.size:
            old = table[i, start:stop]
            for j in range(row.size):
                row[j] = old[j]
        else:
            for j in range(row.size):
                row[j] = F(0)
    for i in range(rows_at.size):
        if rows_at[i] < 0:
            continue
        row = out[rows_at[i], start:stop]
        update = updates[i, start:stop]
        for j in range(row.size):
            row[j] += update[j]


def _supports_scatter(indices: Any, updates: Any, *, num_rows: int) -> bool:
    return updates.dtype == "float32" and "int" in str(indices.dtype)


@compiled("scatter_add_rows", supports=_supports_scatter)
def scatter_add_rows(indices, updates, *, out, num_rows):
    """Sums of the updates [N, ...] of each row into [num_rows, ...], in their order."""
    _add_rows("scatter_add_rows", np.empty((0, 0), F), indices, updates, out[0])


def _supports_rows_add(x: Any, indices: Any, updates: Any) -> bool:
    return x.dtype == "float32" and "int" in str(indices.dtype) and len(x.shape) >= 1


@compiled("rows_add", supports=_supports_rows_add)
def rows_add(x, indices, updates, *, out):
    """x [V, ...] with updates [*indices.shape, ...] added to its rows, in their order."""
    table = as_matrix(as_contiguous(x).reshape(len(x), -1)) if x.size else np.empty((0, 0), F)
    _add_rows("rows_add", table, indices, updates, out[0])


def _supports_segments(data: Any, ids: Any, num_segments: Any) -> bool:
    return data.dtype == "float32" and "int" in str(ids.dtype)


@compiled("unsorted_segment_sum", supports=_supports_segments)
def unsorted_segment_sum(data, ids, num_segments, *, out):
    """Sums of the rows of data by segment id [...]; rows with a negative id are dropped."""
    rows_at = np.array(ids, np.int64).reshape(-1)
    check_indices(np.maximum(rows_at, 0), len(out[0]), "unsorted_segment_sum")
    if out[0].size:
        rows = out[0].reshape(len(out[0]), -1)
        added = as_matrix(as_contiguous(data).reshape(len(rows_at), rows.shape[1]))
        empty = np.empty((0, 0), F)
        parallel_for(_add_columns, rows.shape[1], rows.size, empty, rows_at, added, rows)


@jit()
def _set_columns(start, stop, rows_at, updates, out):
    for i in range(rows_at.size):
        row = out[rows_at[i], start:stop]
        update = updates[i, start:stop]
        for j in range(row.size):
            row[j] = update[j]


@compiled("rows_update", supports=_supports_rows_add)
def rows_update(x, indices, updates, *, out):
    """x [V, ...] with updates [*indices.shape, ...] in place of its rows, in their order."""
    rows_at = _checked_indices(indices, len(x), "rows_update")
    if not out[0].size:
        return
    if x.ctypes.data != out[0].ctypes.data:
        np.copyto(out[0], x)
    rows = out[0].reshape(len(out[0]), -1)
    set_to = as_matrix(as_contiguous(updates).reshape(len(rows_at), rows.shape[1]))
    parallel_for(_set_columns, rows.shape[1], set_to.size, rows_at, set_to, rows)


def _add_rows(
    op: str, table: np.ndarray, indices: np.ndarray, updates: np.ndarray, out: np.ndarray
) -> None:
    rows_at = _checked_indices(indices, len(out), op)
    if not out.size:
        return
    rows = out.reshape(len(out), -1)
    added = as_matrix(as_contiguous(updates).reshape(len(rows_at), rows.shape[1]))
    parallel_for(_add_columns, rows.shape[1], rows.size, table, rows_at, added, rows)
