"""Positions outside of what is gathered from or scattered to are refused by every kernel."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import DataError
from cerebras_tf.kernels import gather_scatter as kernels

X = np.arange(12.0).reshape(2, 3, 2)
ROWS = np.ones((1, 3, 2))
CALLS = {
    "gather": lambda at: kernels.gather(X, at, axis=0, batch_dims=0),
    "gather behind": lambda at: kernels.gather(X[:, :2], at, axis=1, batch_dims=0),
    "gather in step": lambda at: kernels.gather(
        X[:, :2], np.r_[0 * at, at][:, None], axis=1, batch_dims=1
    ),
    "gather_nd": lambda at: kernels.gather_nd(X, at[:, None]),
    "scatter_add_rows": lambda at: kernels.scatter_add_rows(at, ROWS, num_rows=2),
    "scatter_nd": lambda at: kernels.scatter_nd(at[:, None], ROWS, shape=X.shape),
    "scatter_nd_update": lambda at: kernels.scatter_nd_update(X, at[:, None], ROWS),
    "rows_add": lambda at: kernels.rows_add(X, at, ROWS),
    "rows_update": lambda at: kernels.rows_update(X, at, ROWS),
}


@pytest.mark.parametrize("index", [-1, 2])
@pytest.mark.parametrize("kind", CALLS)
def test_a_position_outside_is_named(kind, index):
    CALLS[kind](np.array([1]))
    with pytest.raises(DataError, match=rf"must lie in \[0, 2\). Received: {index} at position"):
        CALLS[kind](np.array([index]))
