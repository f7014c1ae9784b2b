"""Compiled rotary position embedding, float32, one row (a head of a token) at a time."""

from __future__ import annotations

import numpy as np

from cerebras_tf.kernels.compiled_jit import jit
from cerebras_tf.kernels.compiled_layout import all_float32, as_matrix
from cerebras_tf.kernels.compiled_threads import parallel_for
from cerebras_tf.kernels.registry import compiled


@jit()
def _rotary_rows(start, stop, x, cos, sin, row_at, transposed, y):
    """Row i of y [N, D] from row i of x and row row_at[i] of cos and sin."""
    half = x.shape[1] // 2
    for i in range(start, stop):
        c, s = cos[row_at[i]], sin[row_at[i]]
        c1, c2, s1, s2 = c[:half], c[half:], s[:half], s[half:]
        x1, x2, y1, y2 = x[i, :half], x[i, half:], y[i, :half], y[i, half:]
        if transposed:
            for j in range(half):
                y1[j] = x1[j] * c1[j] + x2[j] * s2[j]
                y2[j] = x2[j] * c2[j] - x1[j] * s1[j]
        else:
            for j in range(half):
                y1[j] = x1[j] * c1[j] - x2[j] * s1[j]
                y2[j] = x2[j] * c2[j] + x1[j] * s2[j]


@compiled("rotary", supports=all_float32)
def rotary(x, cos, sin, *, out, transposed):
    """rotary of [..., D] into `out`, with cos and sin that broadcast to it."""
    rows, y = as_matrix(x), as_matrix(out[0])
    tables = as_matrix(cos), as_matrix(sin)
    places = np.arange(len(tables[0])).reshape(cos.shape[:-1])
    row_at = np.broadcast_to(places, x.shape[:-1]).reshape(-1)
    parallel_for(_rotary_rows, len(rows), 2 * x.size, rows, *tables, row_at, transposed, y)
