"""Parity of gathers, scatters, segments and top-k with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal

pytestmark = pytest.mark.tf

# shape of the table, shape of the indices, axis, batch_dims
GATHERS = [
    ((7, 4), (3,), 0, 0),
    ((7, 4), (2, 3), 0, 0),
    ((7, 4), (), 0, 0),
    ((3, 7, 4), (2, 5), 1, 0),
    ((3, 4, 7), (5,), -1, 0),
    ((2, 7), (2, 3), 1, 1),
    ((2, 7, 4), (2, 3), 1, 1),
    ((2, 5, 7, 4), (2, 3), 2, 1),
    ((2, 3, 7, 4), (2, 3, 5, 2), 2, 2),
    ((2, 3, 4, 7, 5), (2, 3), 3, 1),
]


@pytest.mark.parametrize(("table", "indices", "axis", "batch_dims"), GATHERS)
def test_gather_agrees_with_tensorflow(table, indices, axis, batch_dims):
    inputs = [normal(*table), integers(*indices, high=7)]

    def build(x):
        return tf.gather(x[0], x[1], axis=axis, batch_dims=batch_dims)

    check_parity(build, inputs, "gather_scatter")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gather_nd_agrees_with_tensorflow(depth):
    inputs = [normal(4, 5, 6), integers(3, 2, depth, high=4, dtype="int64")]
    check_parity(lambda x: tf.gather_nd(x[0], x[1]), inputs, "gather_scatter")


@pytest.mark.parametrize("depth", [1, 2])
def test_scatter_nd_adds_up_as_tensorflow_does(depth):
    inputs = [integers(9, depth, high=3), normal(9, *(4, 5)[depth - 1 :])]
    check_parity(lambda x: tf.scatter_nd(x[0], x[1], [3, 4, 5]), inputs, "gather_scatter")


def test_tensor_scatters_agree_with_tensorflow():
    inputs = [normal(5, 3), np.array([[4], [0]], "int32"), normal(2, 3)]

    def build(x):
        return [
            tf.tensor_scatter_nd_add(*x),
            tf.tensor_scatter_nd_sub(*x),
            tf.tensor_scatter_nd_update(*x),
        ]

    check_parity(build, inputs, "gather_scatter")


def test_segment_sum_drops_negative_ids_as_tensorflow_does():
    inputs = [normal(2, 4, 3), np.array([[0, 2, -1, 0], [2, 2, 1, -1]], "int32")]
    check_parity(lambda x: tf.math.unsorted_segment_sum(x[0], x[1], 4), inputs, "gather_scatter")


@pytest.mark.parametrize("tied", [False, True])
def test_top_k_agrees_with_tensorflow(tied):
    x = integers(3, 4, 9, high=3).astype(np.float32) if tied else normal(3, 4, 9)
    check_parity(lambda x: list(tf.math.top_k(x[0], 5)), [x], "gather_scatter")


@pytest.mark.parametrize("width", [4, 64])
def test_sums_over_repeated_rows_agree_with_tensorflow(width):
    inputs = [normal(40, width), integers(60, high=40)]
    check_parity(lambda x: tf.gather(x[0], x[1]), inputs, "gather_scatter")


def test_dynamic_stitch_of_computed_rows_agrees_with_tensorflow():
    def build(x):
        return tf.dynamic_stitch([[0, 3], [[1], [2]]], [x[0], x[1]])

    check_parity(build, [normal(2, 4), normal(2, 1, 4)], "gather_scatter")


IDS = np.array([[0, 2, -1, 0], [2, 2, 1, -1]], "int32")
TIED = np.array([[2, 0, 1, 2], [0, 0, 3, 1]], "float32")[..., None] * np.ones(3, "float32")


@pytest.mark.parametrize("kind", ["max", "min", "prod", "mean"])
@pytest.mark.parametrize("data", [normal(2, 4, 3), TIED], ids=["distinct", "tied"])
def test_segments_agree_with_tensorflow(kind, data):
    """Segment 3 is empty; ties share the gradient; two zeros leave a product without one."""
    reduce = getattr(tf.math, f"unsorted_segment_{kind}")
    check_parity(lambda x: reduce(x[0], x[1], 4), [data, IDS], "gather_scatter")


@pytest.mark.parametrize("kind", ["max", "min", "prod", "mean", "sum"])
def test_sorted_segments_agree_with_tensorflow(kind):
    reduce = getattr(tf.math, f"segment_{kind}")
    inputs = [normal(5, 3), np.array([0, 0, 2, 2, 2], "int32")]
    check_parity(lambda x: reduce(*x), inputs, "gather_scatter", sizes_from_data=True)


@pytest.mark.parametrize("adjoint", [False, True])
def test_sparse_product_agrees_with_tensorflow(adjoint):
    indices = np.array([[0, 1], [2, 0], [2, 3]], "int64")

    def build(x):
        sparse = tf.SparseTensor(indices, x[0], [3, 4])
        return tf.sparse.sparse_dense_matmul(sparse, x[1], adjoint, adjoint)

    dense = normal(5, 3) if adjoint else normal(4, 5)
    check_parity(build, [normal(3), dense], "gather_scatter")


def test_top_k_of_a_number_from_data_agrees_with_tensorflow():
    def build(x):
        return list(tf.math.top_k(x[0], k=tf.reduce_sum(x[1])))

    inputs = [normal(3, 9), np.array([1, 2], "int32")]
    check_parity(build, inputs, "gather_scatter", sizes_from_data=True)
