"""Gathers and scatters: compiled against plain, and indices out of range."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import DataError
from cerebras_tf.kernels import gather_scatter as kernels
from cerebras_tf.kernels.registry import COMPILED, PLAIN
from tests.kernels.compare import check_compiled
from tests.messages import names
from tests.tolerances import TOLERANCES

X = np.arange(12.0).reshape(2, 3, 2)
ROWS = np.ones((1, 3, 2))
TABLE = np.ones((2, 2), "f")
CALLS = {
    "labels": lambda at: PLAIN["sparse_softmax_xent"](ROWS[0, :1, :2], at),
    "gather": lambda at: kernels.gather(X, at, axis=0, batch_dims=0),
    "gather along axis 1": lambda at: kernels.gather(X[:, :2], at, axis=1, batch_dims=0),
    "gather with batch_dims": lambda at: kernels.gather(
        X[:, :2], np.r_[0 * at, at][:, None], axis=1, batch_dims=1
    ),
    "gather_nd": lambda at: kernels.gather_nd(X, at[:, None]),
    "scatter_add_rows": lambda at: kernels.scatter_add_rows(at, ROWS, num_rows=2),
    "scatter_nd": lambda at: kernels.scatter_nd(at[:, None], ROWS, shape=X.shape),
    "scatter_nd_update": lambda at: kernels.scatter_nd_update(X, at[:, None], ROWS),
    "rows_add": lambda at: kernels.rows_add(X, at, ROWS),
    "compiled gather": lambda at: COMPILED["gather"].run(
        TABLE, at, out=(np.empty((1, 2), "f"),), axis=0, batch_dims=0
    ),
    "compiled scatter_add_rows": lambda at: COMPILED["scatter_add_rows"].run(
        at, TABLE[:1], out=(TABLE.copy(),), num_rows=2
    ),
    "compiled rows_add": lambda at: COMPILED["rows_add"].run(
        TABLE, at, TABLE[:1], out=(TABLE.copy(),)
    ),
    "rows_update": lambda at: kernels.rows_update(X, at, ROWS),
}


@pytest.mark.parametrize("index", [-1, 2])
@pytest.mark.parametrize("kind", CALLS)
def test_an_index_out_of_range_is_refused(kind, index):
    CALLS[kind](np.array([1]))
    with pytest.raises(DataError) as error:
        CALLS[kind](np.array([index]))
    assert names(error.value, "[0, 2)", f"Received: {index} at position")


NEAR = TOLERANCES["gather_scatter"]
RANDOM = np.random.default_rng(13)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("table", [(9, 5), (9,), (9, 2, 3), (9, 0)])
@pytest.mark.parametrize("indices", [(), (4,), (3, 50), (0,)])
def test_gather_takes_rows(table, indices, dtype):
    params = RANDOM.standard_normal(table).astype("f")
    at = RANDOM.integers(0, 9, indices).astype(dtype)
    check_compiled("gather", [params, np.asarray(at)], (0, 0), axis=0, batch_dims=0)


@pytest.mark.parametrize("width", [1, 5, 1024])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_scatter_adds_rows_that_repeat(width, count):
    updates = RANDOM.standard_normal((count, width)).astype("f")
    indices = RANDOM.integers(0, 40, count)
    near = (NEAR[0], 3 * NEAR[1])
    check_compiled("scatter_add_rows", [indices, updates], near, num_rows=70)


@pytest.mark.parametrize("table", [(9, 5), (9,), (9, 2, 300), (9, 0)])
@pytest.mark.parametrize("indices", [(), (4,), (3, 50), (0,)])
def test_rows_are_added_to_a_table(table, indices):
    x, at = RANDOM.standard_normal(table).astype("f"), np.asarray(RANDOM.integers(0, 9, indices))
    updates = np.asarray(RANDOM.standard_normal((*indices, *table[1:])), "f")
    check_compiled("rows_add", [x, at, updates], (NEAR[0], 3 * NEAR[1]))


def test_strided_operands_give_the_same_numbers():
    table = RANDOM.standard_normal((9, 10)).astype("f")
    at = np.arange(20)[::3]
    check_compiled("gather", [table[::-1, ::2], at % 9], (0, 0), axis=0, batch_dims=0)
    check_compiled("scatter_add_rows", [at, table[:7, ::2]], NEAR, num_rows=20)


def test_only_rows_of_float32_are_supported():
    gather = COMPILED["gather"].supports
    at = np.zeros(3, int)
    assert gather(np.ones((2, 2), "f"), at, axis=0, batch_dims=0)
    assert not gather(np.ones((2, 2), "f"), at, axis=1, batch_dims=0)
    assert not gather(np.ones((2, 2)), at, axis=0, batch_dims=0)
