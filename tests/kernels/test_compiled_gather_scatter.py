"""Compiled look-ups and their gradient against the plain kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.compare import check_compiled
from tests.tolerances import TOLERANCES

pytest.importorskip("numba")

from cerebras_tf.errors import DataError
from cerebras_tf.kernels.registry import COMPILED

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


@pytest.mark.parametrize("index", [-1, 9])
def test_an_index_outside_the_table_is_named(index):
    table, at = np.ones((9, 2), "f"), np.array([3, index])
    with pytest.raises(DataError, match=rf"\[0, 9\)\. Received: {index} at position 1 of 2"):
        COMPILED["gather"].run(table, at, out=(np.empty((2, 2), "f"),), axis=0, batch_dims=0)
    with pytest.raises(DataError, match=rf"\[0, 9\)\. Received: {index} at position 1 of 2"):
        COMPILED["scatter_add_rows"].run(at, table[:2], out=(np.empty((9, 2), "f"),), num_rows=9)
    with pytest.raises(DataError, match=rf"\[0, 9\)\. Received: {index} at position 1 of 2"):
        COMPILED["rows_add"].run(table, at, table[:2], out=(np.empty((9, 2), "f"),))


def test_only_rows_of_float32_are_supported():
    gather = COMPILED["gather"].supports
    at = np.zeros(3, int)
    assert gather(np.ones((2, 2), "f"), at, axis=0, batch_dims=0)
    assert not gather(np.ones((2, 2), "f"), at, axis=1, batch_dims=0)
    assert not gather(np.ones((2, 2)), at, axis=0, batch_dims=0)
