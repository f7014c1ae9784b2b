"""Parity of cutting and joining with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, normal

pytestmark = pytest.mark.tf

STRIDED = [
    ("first", lambda x: x[0]),
    ("last", lambda x: x[-1]),
    ("front", lambda x: x[:2]),
    ("inner", lambda x: x[:, 1:-1]),
    ("beyond", lambda x: x[:, 2:100]),
    ("empty", lambda x: x[:, 3:1]),
    ("steps", lambda x: x[::2, 1::3]),
    ("backwards", lambda x: x[:, ::-1]),
    ("backwards_part", lambda x: x[:, 3:0:-2]),
    ("ellipsis", lambda x: x[..., 1]),
    ("ellipsis_between", lambda x: x[0, ..., 1:3]),
    ("new_axis", lambda x: x[:, tf.newaxis, 1, ..., tf.newaxis]),
    ("all_masks", lambda x: x[tf.newaxis, 1, ..., ::-1, tf.newaxis]),
    ("whole", lambda x: x[:] * 2.0),
]


@pytest.mark.parametrize(("name", "build"), STRIDED, ids=[row[0] for row in STRIDED])
def test_strided_slice_agrees_with_tensorflow(name, build):
    check_parity(lambda x: build(x[0]), [normal(4, 5, 6)], "shape")


@pytest.mark.parametrize("position", [0, 2, -1])
def test_strided_slice_at_computed_position_agrees_with_tensorflow(position):
    inputs = [normal(4, 5), np.array(position, "int32")]
    check_parity(lambda x: [x[0][x[1]], x[0][:, x[1]]], inputs, "shape")


def test_slice_at_computed_position_agrees_with_tensorflow():
    inputs = [normal(4, 5), np.array(2, "int32")]
    check_parity(lambda x: tf.slice(x[0], [1, x[1]], [2, 3]), inputs, "shape")


@pytest.mark.parametrize("key", ["plain", "strided"])
def test_strided_slice_grad_agrees_with_tensorflow(key):
    def build(x):
        taken = x[0][1, :, tf.newaxis, ::2] if key == "strided" else x[0][1:3, ..., 2]
        return tf.gradients(tf.square(taken), x[0])[0]

    check_parity(build, [normal(4, 5, 6)], "shape")


# Rows whose gradient adds numbers up, in an order of its own.
GRADIENT_SUMS = ("concat", "concat_v1", "stack", "pad_reflect", "pad_symmetric")
ROWS = [
    ("slice", lambda x: tf.slice(x[0], [1, 0, 2], [2, -1, 3]), (4, 5, 6)),
    ("split", lambda x: tf.split(x[0], 3, axis=-1), (4, 6)),
    ("split_sizes", lambda x: tf.split(x[0], [1, -1, 2], axis=1), (4, 6)),
    ("unstack", lambda x: tf.unstack(x[0], axis=1), (4, 3, 2)),
    ("stack", lambda x: tf.stack([x[0], x[0] * 2.0], axis=-1), (4, 3)),
    ("concat", lambda x: tf.concat([x[0], x[0][:, :1], 2.0 * x[0]], axis=1), (4, 3)),
    ("concat_one", lambda x: tf.concat([x[0][:2]], axis=0), (4, 3)),
    ("concat_v1", lambda x: tf.raw_ops.Concat(concat_dim=1, values=[x[0], 2.0 * x[0]]), (2, 3)),
    ("pad", lambda x: tf.pad(x[0], [[1, 2], [0, 3]]), (4, 3)),
    ("pad_value", lambda x: tf.pad(x[0], [[1, 2], [0, 3]], constant_values=-1.5), (4, 3)),
    ("pad_reflect", lambda x: tf.pad(x[0], [[1, 2], [2, 1]], "REFLECT"), (4, 3)),
    ("pad_symmetric", lambda x: tf.pad(x[0], [[1, 2], [3, 0]], "SYMMETRIC"), (4, 3)),
    ("reverse", lambda x: tf.reverse(x[0], [0, -1]), (4, 3, 2)),
    ("roll", lambda x: tf.roll(x[0], [1, -2], [0, 1]), (4, 5)),
    ("roll_far", lambda x: tf.roll(x[0], 7, 0), (4, 5)),
]


@pytest.mark.parametrize(("name", "build", "shape"), ROWS, ids=[row[0] for row in ROWS])
def test_slicing_op_agrees_with_tensorflow(name, build, shape):
    check_parity(build, [normal(*shape)], "elementwise" if name in GRADIENT_SUMS else "shape")


def test_gradients_of_joined_tensors_agree_with_tensorflow():
    """TensorFlow writes them with ConcatOffset, ShapeN and Slice."""

    def build(x):
        joined = tf.concat([x[0], x[1]], 1)
        return tf.gradients(tf.square(joined), [x[0], x[1]])

    check_parity(build, [normal(4, 3), normal(4, 2)], "elementwise")
