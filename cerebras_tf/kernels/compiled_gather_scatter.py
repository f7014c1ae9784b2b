"""Compiled gathers and sums of rows, float32: embedding look-up and its gradient.

Letters: V rows of the table, H width, N look-ups. Other axes are left to the plain kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebras_tf.kernels.check_indices import check_positions
from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import matrix, ordinary
from cerebras_tf.kernels.compiled_threads import for_rows
from cerebras_tf.kernels.registry import compiled

F = np.float32
Out = tuple[np.ndarray, ...]


def _positions(indices: np.ndarray, rows: int, where: str) -> np.ndarray:
    """Indices as contiguous int64 [N], each checked to lie in [0, rows)."""
    flat = np.array(indices, np.int64).reshape(-1)
    check_positions(flat, rows, where)
    return flat


@jit()
def _gather_rows(start, stop, table, positions, out):
    for i in range(start, stop):
        source = table[positions[i]]
        row = out[i]
        for j in range(row.size):
            row[j] = source[j]


def _supports_gather(params: Any, indices: Any, *, axis: int, batch_dims: int) -> bool:
    rank = len(params.shape)
    integer = "int" in str(indices.dtype)
    return params.dtype == "float32" and integer and axis == 0 == batch_dims and rank >= 1


@compiled("gather", supports=_supports_gather)
def gather(
    params: np.ndarray, indices: np.ndarray, *, out: Out, axis: int, batch_dims: int
) -> None:
    """Rows of params [V, ...] at indices [...] into [..., ...].

    Raises:
        DataError: an index is not in [0, V).
    """
    positions = _positions(indices, len(params), "gather")
    if not out[0].size:
        return
    table = ordinary(params).reshape(len(params), -1)
    rows = out[0].reshape(len(positions), -1)
    for_rows(_gather_rows, len(rows), rows.size, table, positions, rows)


@jit()
def _add_columns(start, stop, table, positions, updates, out):
    """Columns start to stop of out = the table, zeros where it is empty, with updates added.

    The table may be `out` itself.
    """
    is_there = table.size and table.ctypes.data == out.ctypes.data
    for i in range(0 if is_there else out.shape[0]):
        row = out[i, start:stop]
        if table.size:
            old = table[i, start:stop]
            for j in range(row.size):
                row[j] = old[j]
        else:
            for j in range(row.size):
                row[j] = F(0)
    for i in range(positions.size):
        row = out[positions[i], start:stop]
        update = updates[i, start:stop]
        for j in range(row.size):
            row[j] += update[j]


def _supports_scatter(indices: Any, updates: Any, *, num_rows: int) -> bool:
    return updates.dtype == "float32" and "int" in str(indices.dtype)


@compiled("scatter_add_rows", supports=_supports_scatter)
def scatter_add_rows(indices: np.ndarray, updates: np.ndarray, *, out: Out, num_rows: int) -> None:
    """Sums of the updates [N, ...] of each row into [num_rows, ...], in the order they come.

    Raises:
        DataError: an index is not in [0, num_rows).
    """
    _add_rows("scatter_add_rows", np.empty((0, 0), F), indices, updates, out[0])


def _supports_rows_add(x: Any, indices: Any, updates: Any) -> bool:
    return x.dtype == "float32" and "int" in str(indices.dtype) and len(x.shape) >= 1


@compiled("rows_add", supports=_supports_rows_add)
def rows_add(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, out: Out) -> None:
    """x [V, ...] with updates [*indices.shape, ...] added to its rows, in the order they come.

    Raises:
        DataError: an index is not in [0, V).
    """
    table = matrix(ordinary(x).reshape(len(x), -1)) if x.size else np.empty((0, 0), F)
    _add_rows("rows_add", table, indices, updates, out[0])


def _add_rows(
    op: str, table: np.ndarray, indices: np.ndarray, updates: np.ndarray, out: np.ndarray
) -> None:
    positions = _positions(indices, len(out), op)
    if not out.size:
        return
    rows = out.reshape(len(out), -1)
    added = matrix(ordinary(updates).reshape(len(positions), rows.shape[1]))
    for_rows(_add_columns, rows.shape[1], rows.size, table, positions, added, rows)
